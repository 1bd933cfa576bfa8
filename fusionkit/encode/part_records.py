"""Records of a store's parts: finished parts, parts that failed too often, and the process that encodes.

STORE/parts/{split}-{00000}.json       a finished part; written when its chunks are durable
STORE/failed/{split}-{00000}.json      a failed part: its last error, number of attempts, time and machine;
                                       kept until all parts are done
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.encode.lock import encoder_at
from fusionkit.errors import FusionkitError, StoreError
from fusionkit.io.files import parse_json, write_json
from fusionkit.io.places import Place, is_file, place_errors, read_all, read_bytes, remove, size_of, sizes_below
from fusionkit.specs import digest_of
from fusionkit.store.chunks import written_checksum
from fusionkit.store.layout import chunk_name, part_path
from fusionkit.store.manifest import read_manifest, read_plan, split_layout
from fusionkit.store.presence import FAILED, PARTS, STATES, is_complete, states_path


@dataclass(frozen=True)
class PartRecord:
    """The record of a finished part.

    Attributes:
        tokens: sub-tokens of its input. seconds: from reading its input to its durable chunk.
        crc32c, sizes: checksum of the content and bytes of each array's file, by the array's name.
        computed_with: as in :attr:`fusionkit.encoder.Encoder.computes_with`.
        plan: digest of the plan; empty in records of earlier versions.
    """

    split: str
    chunk: int
    rows: int
    tokens: int
    seconds: float
    crc32c: dict[str, int]
    sizes: dict[str, int]
    computed_with: dict[str, Any] = field(default_factory=dict)
    plan: str = ""


def plan_digest(plan: dict[str, Any]) -> str:
    """The digest of a plan; of a manifest, the digest of the plan that it was written from."""
    splits = {
        split: {name: value for name, value in fields.items() if name != "chunks"}
        for split, fields in plan["splits"].items()
    }
    planned = {name: value for name, value in plan.items() if name != "provenance"}
    return digest_of({**planned, "splits": splits})


def all_parts(plan: dict[str, Any]) -> list[Part]:
    """Every part of a plan."""
    return [Part(split, chunk) for split in plan["splits"] for chunk in range(split_layout(plan, split).chunks)]


def finished_parts(store: Place, plan: dict[str, Any]) -> dict[Part, PartRecord]:
    """The records of the parts that are done: valid records whose chunks are there."""
    names = {part: part_path(store, part.split, part.chunk).name for part in all_parts(plan)}
    contents = read_all(store / PARTS, list(names.values()))
    sizes: dict[str, int] = {}
    for split in () if isinstance(store, Path) else plan["splits"]:
        sizes |= {f"{STATES}/{split}/{name}": size for name, size in sizes_below(states_path(store) / split).items()}
    found, digest = {}, plan_digest(plan)
    for part, name in names.items():
        if name in contents and (record := _valid_record(contents[name], store, plan, digest, part, sizes)):
            found[part] = record
    return found


def finished_part(store: Place, plan: dict[str, Any], part: Part) -> PartRecord | None:
    """The record of one part if it is done; reads fewer files than :func:`finished_parts`."""
    path = part_path(store, part.split, part.chunk)
    if not is_file(path):
        return None
    sizes: dict[str, int] = {}
    if not isinstance(store, Path):
        names = [chunk_name(part.split, part.chunk, array.name) for array in split_layout(plan, part.split).arrays]
        sizes = {name: size_of(store / name) for name in names if is_file(store / name)}
    return _valid_record(read_bytes(path), store, plan, plan_digest(plan), part, sizes)


def _valid_record(
    content: bytes, store: Place, plan: dict[str, Any], digest: str, part: Part, sizes: dict[str, int]
) -> PartRecord | None:
    """The record with this content, if it is the part's and its chunks are there.

    Args:
        digest: of the plan. sizes: of the chunks on object storage, by name.
    """
    layout = split_layout(plan, part.split)
    start, stop = layout.chunk_rows(part.chunk)
    names = [array.name for array in layout.arrays]
    try:
        record = PartRecord(**parse_json(content, part_path(store, part.split, part.chunk)))
        valid = (
            record.plan == digest  # a process of an earlier plan may write late
            and (record.split, record.chunk, record.rows) == (part.split, part.chunk, stop - start)
            and type(record.tokens) is int
            and 0 <= record.tokens <= plan["splits"][part.split]["tokens"]
            and 0 <= record.seconds < float("inf")
            and isinstance(record.computed_with, dict)
            and list(record.crc32c) == list(record.sizes) == names
            and all(_chunk_is_there(record, store, part, name, sizes) for name in names)
        )
    except (StoreError, TypeError, AttributeError, OSError):
        return None
    return record if valid else None


def _chunk_is_there(record: PartRecord, store: Place, part: Part, array: str, sizes: dict[str, int]) -> bool:
    name, size = chunk_name(part.split, part.chunk, array), record.sizes[array]
    if isinstance(chunk := store / name, Path):
        return chunk.stat().st_size == size and written_checksum(chunk) == record.crc32c[array]
    # An object on remote storage is complete or absent, so one request per chunk would tell nothing more.
    return sizes.get(name) == size


def record_failure(store: Place, part: Part, error: Exception, attempts: int) -> None:
    """Record a part that failed and is not tried again in this call."""
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


def store_status(store: Place) -> dict[str, Any]:
    """The state of a store as plain values.

    Returns:
        ``path``; ``state``: ``complete``, ``running`` or ``unfinished``; ``encoder``: the processes that encode, or
        None; ``splits``: parts and sub-tokens, in all and done, and failed parts; ``failed``: records of parts that
        failed too often.

    Raises:
        StoreError: the store is damaged.
    """
    with place_errors(store):
        complete = is_complete(store)
        plan = read_manifest(store) if complete else read_plan(store)
        every = all_parts(plan)
        records = {} if complete else finished_parts(store, plan)
        done = every if complete else list(records)
        failed = [] if complete else [one for one in failures(store) if Part(one["split"], one["chunk"]) not in records]
        running = encoder_at(store)
    return {
        "path": str(store),
        "state": "complete" if complete else "running" if running else "unfinished",
        "encoder": running,
        "splits": {
            split: {
                "parts": sum(part.split == split for part in every),
                "done": sum(part.split == split for part in done),
                "failed": sum(one["split"] == split for one in failed),
                "tokens": fields["tokens"],
                # An example that crosses a part's border counts in both parts.
                "tokens_done": fields["tokens"]
                if complete
                else min(fields["tokens"], sum(record.tokens for record in records.values() if record.split == split)),
            }
            for split, fields in plan["splits"].items()
        },
        "failed": failed,
    }
