"""The seconds that the encoding of a store took, from the records of its parts."""

from __future__ import annotations

from pathlib import Path

from fusionkit.errors import FusionkitError
from fusionkit.io.files import read_json
from fusionkit.store.reader import Store


def encode_seconds(store: Store) -> dict[str, float] | None:
    """Seconds that each split's encoding took, from the records of its parts; None where these lack them.

    Seconds of parts that were encoded in parallel are added: the sum is the time of one worker.
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
