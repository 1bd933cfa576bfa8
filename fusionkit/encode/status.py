"""Which parts of a store are done, running and failed, read from its files on any machine."""

from __future__ import annotations

from typing import Any

from fusionkit.encode.batches import Part
from fusionkit.encode.failed_parts import failures
from fusionkit.encode.lock import encoder_at
from fusionkit.encode.part_records import all_parts, finished_parts
from fusionkit.places import Place, place_errors
from fusionkit.store.manifest import is_complete, read_manifest, read_plan


def store_status(store: Place) -> dict[str, Any]:
    """The state of a store as plain values.

    Returns:
        ``path``; ``state``: ``complete``, ``running`` or ``unfinished``; ``encoder``: who encodes, or None;
        ``splits``: counts of parts and sub-tokens, all and done; ``failed``: records of parts that failed too often.

    Raises:
        StoreError: the store is damaged.
    """
    with place_errors(store):
        complete = is_complete(store)
        plan = read_manifest(store) if complete else read_plan(store)
        every = all_parts(plan)
        records = {} if complete else finished_parts(store, plan)
        done = set(every) if complete else set(records)
        failed = (
            [] if complete else [each for each in failures(store) if Part(each["split"], each["chunk"]) not in done]
        )
        running = encoder_at(store)
    tokens = {split: fields["tokens"] for split, fields in plan["splits"].items()}
    return {
        "path": str(store),
        "state": "complete" if complete else "running" if running else "unfinished",
        "encoder": running,
        "splits": {
            split: {
                "parts": sum(part.split == split for part in every),
                "done": sum(part.split == split for part in done),
                "failed": sum(each["split"] == split for each in failed),
                "tokens": tokens[split],
                "tokens_done": tokens[split]
                if complete
                else sum(record.tokens for part, record in records.items() if part.split == split),
            }
            for split in plan["splits"]
        },
        "failed": failed,
    }
