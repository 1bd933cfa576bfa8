"""Finding the stores of runs. A run records the digest of its store's identity, and not where the store is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionkit.errors import FusionkitError
from fusionkit.files import read_json
from fusionkit.store import Store, is_complete, open_store


@dataclass(frozen=True)
class FoundStores:
    """Stores by digest. Attributes: found: those that open. looked: the folders that were looked through."""

    found: dict[str, Store]
    looked: list[Path]

    def get(self, digest: str) -> Store | None:
        """The store of this digest, or None where it was not found."""
        return self.found.get(digest)


def find_stores(runs: Sequence[Path], given: Sequence[Path] = ()) -> FoundStores:
    """Stores that are given, then those that lie beside the runs, in them or beside their parent folder.

    Args:
        runs: folders of runs. given: stores, or folders of stores.
    """
    found: dict[str, Store] = {}
    beside = [place for folder in runs for place in (folder.resolve().parent, folder.resolve().parent.parent)]
    looked = list(dict.fromkeys([*(path.resolve() for path in given), *beside]))
    for path in _candidates(looked):
        try:
            if is_complete(path):
                store = open_store(path)
                found.setdefault(store.digest, store)
        except (FusionkitError, OSError):
            continue  # damaged or another's: to the report it is gone
    return FoundStores(found, looked)


def encode_seconds(store: Store) -> dict[str, float] | None:
    """Seconds that each split's encoding took, as its parts tell; None where they do not.

    Parts that were encoded side by side count one after the other: it is the time of one worker.
    """
    if not isinstance(store.path, Path):
        return None
    seconds: dict[str, float] = {}
    for path in sorted((store.path / "parts").glob("*.json")):
        try:
            part = read_json(path)
            seconds[part["split"]] = seconds.get(part["split"], 0.0) + float(part["seconds"])
        except (FusionkitError, KeyError, TypeError, ValueError):
            return None
    return seconds or None


def _candidates(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        if (folder / "manifest.json").is_file():
            yield folder
            continue
        try:
            yield from (path.parent for path in sorted(folder.glob("*/manifest.json")))
        except OSError:
            continue
