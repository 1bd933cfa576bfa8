"""Finding the stores of runs. A run records the digest of its store's identity, and not where the store is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fusionkit.errors import FusionkitError
from fusionkit.files import read_json
from fusionkit.store import Store, open_store
from fusionkit.store.manifest import MANIFEST


def find_stores(runs: Sequence[Path], given: Sequence[Path] = ()) -> dict[str, Store]:
    """By digest, stores that are given, then those that lie beside the runs, in them or beside their parent folder.

    Args:
        runs: folders of runs. given: stores, or folders of stores.
    """
    found: dict[str, Store] = {}
    beside = [parent for folder in runs for parent in (folder.resolve().parent, folder.resolve().parent.parent)]
    for folder in dict.fromkeys([*(path.resolve() for path in given), *beside]):
        with suppress(OSError):
            manifests = [folder / MANIFEST] if (folder / MANIFEST).is_file() else sorted(folder.glob(f"*/{MANIFEST}"))
            for path in manifests:
                with suppress(FusionkitError, OSError):  # damaged or another's: to the report it is gone
                    store = open_store(path.parent)
                    found.setdefault(store.digest, store)
    return found


def encode_seconds(store: Store) -> dict[str, float] | None:
    """Seconds that each split's encoding took, as its parts tell; None where they do not.

    Parts that were encoded side by side count one after the other: it is the time of one worker.
    """
    if not isinstance(store.path, Path):
        return None
    seconds: dict[str, float] = {}
    try:
        for path in sorted((store.path / "parts").glob("*.json")):
            part = read_json(path)
            seconds[part["split"]] = seconds.get(part["split"], 0.0) + float(part["seconds"])
    except (FusionkitError, KeyError, TypeError, ValueError):
        return None
    return seconds or None
