"""Records of parts that failed too often: a small JSON file each, in the store until all parts are done.

STORE/failed/{split}-{00000}.json      the part, its last error, how often it was tried, when and where
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.errors import FusionkitError, StoreError
from fusionkit.files import parse_json, write_json
from fusionkit.places import Place, read_all, remove, sizes_below
from fusionkit.store.layout import part_path

FAILED = "failed"


def record_failure(store: Place, part: Part, error: Exception, attempts: int) -> None:
    """Record that a part is not tried again in this call."""
    message = str(error) if isinstance(error, FusionkitError) else f"{type(error).__name__}: {error}"
    value = {
        "split": part.split,
        "chunk": part.chunk,
        "error": message,
        "attempts": attempts,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "driver": socket.gethostname(),
    }
    write_json(_path(store, part), value)


def failures(store: Place) -> list[dict[str, Any]]:
    """The records in the order of the parts' names; incomplete ones are left out."""
    contents = read_all(store / FAILED, sorted(sizes_below(store / FAILED)))
    found = []
    for name, content in contents.items():
        try:
            value = parse_json(content, store / FAILED / name)
        except StoreError:
            continue
        if {"split", "chunk", "error", "attempts", "time"} <= set(value):
            found.append(value)
    return found


def clear_failure(store: Place, part: Part) -> None:
    """Remove a part's record: the part is done."""
    remove(_path(store, part))


def clear_failures(store: Place) -> None:
    """Remove all records."""
    for name in sizes_below(store / FAILED):
        remove(store / FAILED / name)
    if isinstance(folder := store / FAILED, Path) and folder.is_dir():  # on object storage it goes with its last file
        folder.rmdir()


def _path(store: Place, part: Part) -> Place:
    return store / FAILED / part_path(store, part.split, part.chunk).name
