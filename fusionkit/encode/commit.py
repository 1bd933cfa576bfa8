"""Step three: the manifest, written when all parts are finished."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.encode.failed_parts import clear_failures
from fusionkit.encode.part_records import PartRecord, all_parts, finished_parts
from fusionkit.errors import StoreError
from fusionkit.files import write_json
from fusionkit.places import Place, remove
from fusionkit.store.manifest import MANIFEST, PLAN, split_layout
from fusionkit.store.verify import refuse_changed_files


def commit(out: Place, plan: dict[str, Any], device: str) -> dict[str, Any]:
    """Write the manifest and remove the plan: the store is complete from here on.

    Args:
        device: what the parts were encoded on.

    Raises:
        StoreError: a part is not finished, or a file of the plan was changed.
    """
    records = finished_parts(out, plan)
    for part in all_parts(plan):
        if part not in records:
            raise StoreError(
                f"part {part.chunk} of {part.split} in {out} is not finished",
                remedy="run the same command again",
            )
    clear_failures(out)
    if isinstance(out, Path):  # remote files would all be fetched; `fusionkit verify` does that
        refuse_changed_files(out, plan["files"])
    seconds = sum(record.seconds for record in records.values())
    manifest = {**plan, "splits": _splits(plan, records), "provenance": _provenance(seconds, device)}
    write_json(out / MANIFEST, manifest)
    remove(out / PLAN)
    return manifest


def _splits(plan: dict[str, Any], records: dict[Part, PartRecord]) -> dict[str, Any]:
    """The splits' fields of the plan, each with the checksums of its chunks by array."""
    found = {}
    for split, fields in plan["splits"].items():
        layout = split_layout(plan, split)
        checksums = [records[Part(split, chunk)].crc32c for chunk in range(layout.chunks)]
        found[split] = {
            **fields,
            "chunks": {array.name: [one[array.name] for one in checksums] for array in layout.arrays},
        }
    return found


def _provenance(seconds: float, device: str) -> dict[str, Any]:
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        "device": device,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "fusionkit": version("fusionkit"),
    }
