"""Checking each byte of a store against its checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fusionkit.errors import StoreError
from fusionkit.io.files import damaged, sha256_of
from fusionkit.io.object_storage import UnansweredError
from fusionkit.io.places import Place, place_errors
from fusionkit.store.chunks import chunk_fault, reading_fault
from fusionkit.store.layout import chunk_name
from fusionkit.store.manifest import disagreement, read_manifest, split_layout
from fusionkit.store.presence import EXAMPLES, LM_HEAD, MANIFEST, states_path

READERS = 4  # remote files read at once


@dataclass(frozen=True)
class Checked:
    """One checked file: its path inside the store, and what is wrong with it or None."""

    path: str
    fault: str | None


def verify_store(path: Place) -> Iterator[Checked]:
    """Read each chunk and each other file of a complete store, and compare its bytes with its checksum.

    Yields:
        one :class:`Checked` per file, chunks first.
    """
    with place_errors(path):
        manifest = read_manifest(path)
    checks: list[tuple[str, Callable[[], str | None]]] = []
    for split, fields in manifest["splits"].items():
        layout = split_layout(manifest, split)
        try:
            fault = disagreement(path, manifest, split)
        except UnansweredError:
            raise
        except StoreError:  # the array's metadata is among the files below
            fault = None
        if fault is not None:
            yield Checked(MANIFEST, fault)
            continue
        for array in layout.arrays:
            for chunk, recorded in enumerate(fields["chunks"][array.name]):
                name = chunk_name(split, chunk, array.name)
                checks.append((name, partial(chunk_fault, path / name, array, layout.compression, recorded)))
    checks += [(name, partial(_file_fault, path / name, digest)) for name, digest in manifest["files"].items()]
    # Remote files are slow to open: a few at once.
    with place_errors(path), ThreadPoolExecutor(1 if isinstance(path, Path) else READERS) as pool:
        yield from pool.map(lambda check: Checked(check[0], check[1]()), checks)


def small_files(path: Path) -> dict[str, str]:
    """SHA-256 of every file of a planned store that is neither a chunk of states nor bookkeeping."""
    found = {}
    for file in sorted([*states_path(path).rglob("*"), *(path / EXAMPLES).rglob("*"), path / LM_HEAD]):
        inside = file.relative_to(path)
        is_chunk = inside.parts[2:4] in (("hidden_states", "c"), ("scales", "c"))
        if file.is_file() and not is_chunk and not file.name.endswith(".partial"):
            found[inside.as_posix()] = sha256_of(file)
    return found


def refuse_changed_files(path: Path, recorded: dict[str, str]) -> None:
    """Raise :class:`StoreError` if a file's hash is not the one that :func:`small_files` recorded."""
    found = small_files(path)
    if found != recorded:
        changed = min(name for name, _ in found.items() ^ recorded.items())
        if changed in found and changed not in recorded:  # of a file browser or a notebook: the store is not damaged
            raise StoreError(
                f"{path} holds a file that is not its own: {changed}",
                expected="the files that were planned",
                remedy="move it elsewhere, then run the same command again",
            )
        received = "another file" if changed in found else "none"
        raise damaged(path, f"{changed} as it was planned", received, "encode again with --overwrite")


def _file_fault(file: Place, digest: Any) -> str | None:
    try:
        if isinstance(file, Path) and not file.is_file():
            return "missing"
        return None if sha256_of(file) == digest else "its bytes do not match its checksum"
    except OSError as error:
        return reading_fault(file, error)
