"""The names of a store's files and folders, and whether a place holds a store; without importing a reader."""

from __future__ import annotations

from fusionkit.io.places import AnyPlace, Place, is_file

PLAN, MANIFEST, LM_HEAD = "plan.json", "manifest.json", "lm_head.safetensors"
FOLDERS = STATES, EXAMPLES, PARTS, FAILED = "states.zarr", "examples", "parts", "failed"


def is_store(path: Place) -> bool:
    """True where a store was begun or finished."""
    return is_file(path / PLAN) or is_file(path / MANIFEST)


def is_complete(path: Place) -> bool:
    return is_file(path / MANIFEST)


def states_path(store: AnyPlace) -> AnyPlace:
    return store / STATES
