"""Whether a place holds a store: checks of file names that import no reader."""

from __future__ import annotations

from fusionkit.io.places import AnyPlace, Place, is_file

PLAN, MANIFEST, STATES = "plan.json", "manifest.json", "states.zarr"


def is_store(path: Place) -> bool:
    """True where a store was begun or finished."""
    return is_file(path / PLAN) or is_file(path / MANIFEST)


def is_complete(path: Place) -> bool:
    return is_file(path / MANIFEST)


def states_path(store: AnyPlace) -> AnyPlace:
    return store / STATES
