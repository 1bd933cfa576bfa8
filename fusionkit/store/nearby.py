"""The stores that belong to folders of runs: those that a user names, and those that lie beside the runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.io.places import Place, UnreadableError, is_there, listed
from fusionkit.store.presence import MANIFEST, is_complete, is_store
from fusionkit.store.reader import Store, open_planned


def find_stores(runs: Sequence[Path], given: Sequence[Place] = (), planned: bool = False) -> dict[str, Store]:
    """Stores by digest: the given ones (stores, or folders of stores, on object storage too), and those next to folders
    of runs or to their parents; with ``planned`` also those without states.
    """
    found: dict[str, Store] = {}
    beside = [parent for folder in runs for parent in (folder.resolve().parent, folder.resolve().parent.parent)]
    named = [place.resolve() if isinstance(place, Path) else place for place in given]
    for folder in dict.fromkeys([*named, *beside]):
        for place in _stores(folder, planned):
            with suppress(FusionkitError, OSError):  # damaged or unreadable: its runs are shown without it
                store = open_planned(place)
                found.setdefault(store.digest, store)
    return found


def refuse_storeless(places: Iterable[Place], planned: bool = False) -> None:
    """Refuse a place that is neither a finished store nor a folder of some (UsageError); with ``planned`` a store
    without states is enough. No store is opened.
    """
    for place in places:
        if not _stores(place, planned):
            raise UsageError(
                f"{place} holds no {'store' if planned else 'finished store'}",
                expected="a store that `fusionkit encode --out` wrote, or a folder of stores",
                received=f"no {MANIFEST} in it or in its folders" if is_there(place) else "a path that does not exist",
                remedy="check the path, or leave it out: stores beside the runs are found without it",
            )


def _stores(place: Place, planned: bool) -> list[Place]:
    """The place of a store, or those of the stores in it; none where a local folder cannot be read."""
    if _is_there(place, planned):
        return [place]
    with suppress(UnreadableError):
        return [each for each in sorted(listed(place), key=str) if _is_there(each, planned)]
    return []


def _is_there(place: Place, planned: bool) -> bool:
    """Whether this is a finished store, or with ``planned`` one that was begun; not if it cannot be read: one such
    folder must not hide those beside it.
    """
    with suppress(UnreadableError):
        return is_store(place) if planned else is_complete(place)
    return False
