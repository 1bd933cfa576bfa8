"""What a folder of split files holds besides: files of data that no split takes, for the user to see."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from fusionkit.plural import few
from fusionkit.printable import one_line

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
NAMED = 5  # files that a note names
# Words in the names of texts and of JSON files that are about the data and hold none.
ABOUT = re.compile(
    r"(?<![a-z])(read_?me|licen[cs]es?|copying|notice|authors|changelog|citation|requirements|"
    r"dataset_infos?|metadata|config|package)(?![a-z])"
)


def notes_on_left_out(folder: Path, taken: Collection[Path], suffixes: Collection[str]) -> list[str]:
    """A note on the files of data that are of no split, and one on those that are compressed.

    Args:
        taken: the files of the splits. suffixes: of the files that can be read.
    """
    others = [path for path in sorted(folder.iterdir()) if path not in taken and _is_data(path, suffixes)]
    packed = [path.name for path in others if _is_packed(path)]
    plain = [path.name for path in others if not _is_packed(path)]
    ends = "its name does" if len(plain) == 1 else "their names do"
    return [
        *_note(plain, f"{ends} not end in train, validation or test"),
        *_note(packed, "compressed files are not read; unpack them"),
    ]


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in COMPRESSED


def _is_data(path: Path, suffixes: Collection[str]) -> bool:
    """Whether a file can be read as data, at least once unpacked; not if the unpacked file is there too."""
    if path.name.startswith(".") or not path.is_file():
        return False
    inner = path.with_suffix("") if _is_packed(path) else path
    suffix = inner.suffix.lower()
    if suffix not in suffixes or (inner != path and inner.exists()):
        return False
    return suffix not in (".txt", ".json") or not ABOUT.search(inner.stem.lower())


def _note(names: Sequence[str], why: str) -> list[str]:
    return [f"left out: {few([one_line(name) for name in names], NAMED)}: {why}"] if names else []
