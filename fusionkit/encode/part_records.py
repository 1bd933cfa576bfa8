"""Records of finished parts: a small JSON file each, written when the part's chunks are durable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.errors import StoreError
from fusionkit.files import parse_json
from fusionkit.places import Place, is_file, read_all, read_bytes, size_of, sizes_below
from fusionkit.store.chunks import written_checksum
from fusionkit.store.layout import chunk_path, part_path, states_path
from fusionkit.store.manifest import split_layout


@dataclass(frozen=True)
class PartRecord:
    """The record of a finished part.

    Attributes:
        tokens: sub-tokens it took. seconds: from reading its input to its durable chunk.
        crc32c, sizes: checksum and bytes of each array's file, by the array's name.
    """

    split: str
    chunk: int
    rows: int
    tokens: int
    seconds: float
    crc32c: dict[str, int]
    sizes: dict[str, int]


def all_parts(plan: dict[str, Any]) -> list[Part]:
    """Every part of a plan."""
    return [Part(split, chunk) for split in plan["splits"] for chunk in range(split_layout(plan, split).chunks)]


def finished_parts(store: Place, plan: dict[str, Any]) -> dict[Part, PartRecord]:
    """The records of the parts that are done: valid records whose chunks are there."""
    contents = read_all(store / "parts", [part_path(store, part.split, part.chunk).name for part in all_parts(plan)])
    sizes = {split: sizes_below(states_path(store) / split) for split in plan["splits"]}
    found = {}
    for part in all_parts(plan):
        content = contents.get(part_path(store, part.split, part.chunk).name)
        if content is not None and (record := _valid_record(content, store, plan, part, sizes[part.split])):
            found[part] = record
    return found


def finished_part(store: Place, plan: dict[str, Any], part: Part) -> PartRecord | None:
    """The record of one part if it is done; reads fewer files than :func:`finished_parts`."""
    path = part_path(store, part.split, part.chunk)
    if not is_file(path):
        return None
    layout = split_layout(plan, part.split)
    chunks = [chunk_path(store, part.split, part.chunk, array.name) for array in layout.arrays]
    top = f"{states_path(store) / part.split}/"
    sizes = {str(chunk).removeprefix(top): size_of(chunk) for chunk in chunks if is_file(chunk)}
    return _valid_record(read_bytes(path), store, plan, part, sizes)


def _valid_record(
    content: bytes, store: Place, plan: dict[str, Any], part: Part, sizes: dict[str, int]
) -> PartRecord | None:
    try:
        record = PartRecord(**parse_json(content, part_path(store, part.split, part.chunk)))
        return record if _is_valid(record, store, plan, part, sizes) else None
    except (StoreError, TypeError, AttributeError, OSError):
        return None


def _is_valid(record: PartRecord, store: Place, plan: dict[str, Any], part: Part, sizes: dict[str, int]) -> bool:
    layout = split_layout(plan, part.split)
    start, stop = layout.chunk_rows(part.chunk)
    names = [array.name for array in layout.arrays]
    return (
        (record.split, record.chunk, record.rows) == (part.split, part.chunk, stop - start)
        and type(record.tokens) is int
        and 0 <= record.tokens <= plan["splits"][part.split]["tokens"]
        and 0 <= record.seconds < float("inf")
        and list(record.crc32c) == list(record.sizes) == names
        and all(_chunk_is_there(record, store, part, name, sizes) for name in names)
    )


def _chunk_is_there(record: PartRecord, store: Place, part: Part, array: str, sizes: dict[str, int]) -> bool:
    chunk = chunk_path(store, part.split, part.chunk, array)
    if sizes.get(str(chunk).removeprefix(f"{states_path(store) / part.split}/")) != record.sizes[array]:
        return False
    # An object on remote storage is whole or absent; a request a chunk would say no more.
    return not isinstance(chunk, Path) or written_checksum(chunk) == record.crc32c[array]
