"""What an encode will cost, before it starts: rows, bytes, files, time and memory.

A sample of each split is planned as an encode would plan it; counts scale to the whole split and are exact
where the sample is all of it. Time comes from forward passes over batches spread evenly over all lengths.
"""

from __future__ import annotations

import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.encode.batches import Part, PartReader
from fusionkit.encode.job import STAGINGS
from fusionkit.encode.parts import all_parts
from fusionkit.encode.plan import choose_rows, identity_of, write_plan
from fusionkit.encoder import Encoder
from fusionkit.sources import Columns, Examples, Source, prepared
from fusionkit.specs import EncodeSpec
from fusionkit.store.layout import StatesLayout, balanced_rows_per_chunk, row_bytes
from fusionkit.store.manifest import read_plan

SAMPLE_EXAMPLES = 20_000  # a split; more are scaled up from so many
MEASURED_SECONDS = 5.0


@dataclass(frozen=True)
class Estimate:
    """The cost of an encode.

    Attributes:
        rows: kind of rows. splits: examples, rows and tokens of each. exact: nothing was scaled up.
        bytes, files: on disk. seconds: planning and encoding on this machine, now.
        memory: peak resident bytes. choices: bytes under each cheaper choice.
    """

    rows: str
    splits: dict[str, dict[str, int]]
    exact: bool
    bytes: int
    files: int
    seconds: float
    memory: int
    choices: dict[str, int]


def estimate(source: Source, columns: Columns, spec: EncodeSpec, encoder: Encoder) -> Estimate:
    """Plan a sample, run a few of its batches, and scale up.

    Raises:
        UsageError, DataError: what an encode of the source would raise.
    """
    sizes = {split: examples.num_rows for split, examples in source.splits.items()}
    sample = replace(source, splits={split: _sampled(examples) for split, examples in source.splits.items()})
    sample, _ = prepared(sample, columns)
    rows = choose_rows(spec.rows, columns, encoder)
    with tempfile.TemporaryDirectory(prefix="fusionkit-estimate-") as folder:
        store = Path(folder) / "sample"
        began = time.perf_counter()
        write_plan(store, sample, columns, encoder, spec, identity_of(sample, columns, encoder, spec, rows))
        planning = time.perf_counter() - began
        plan = read_plan(store)
        per_token = _seconds_per_padded_token(store, plan, encoder)
        padded = {split: _padded_tokens(store, plan, encoder, split) for split in plan["splits"]}
        small = {split: _bytes_of(store, split) for split in plan["splits"]}
    splits, seconds, size, files = {}, 0.0, 0, 2
    for split, fields in plan["splits"].items():
        scale = sizes[split] / fields["examples"]
        counts = {name: round(fields[name] * scale) for name in ("examples", "rows", "tokens")}
        splits[split] = counts
        layout = _layout(counts, len(plan["layers"]), plan["hidden"], plan["dtype"])
        size += layout.chunks * layout.chunk_bytes + round(small[split] * scale)
        files += (1 + len(layout.arrays)) * layout.chunks + 14 + len(layout.arrays)  # metadata, small arrays, examples
        seconds += (planning * fields["examples"] / sum(s["examples"] for s in plan["splits"].values())) * scale
        seconds += padded[split] * scale * per_token
    # Stagings, and the block that is being written.
    held = max(_layout(c, len(plan["layers"]), plan["hidden"], plan["dtype"]).chunk_bytes for c in splits.values())
    return Estimate(
        rows=rows,
        splits=splits,
        exact=all(sizes[split] == fields["examples"] for split, fields in plan["splits"].items()),
        bytes=size,
        files=files,
        seconds=seconds,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + (STAGINGS + 1) * held,
        choices=_choices(plan, splits, columns, size),
    )


def _sampled(examples: Examples) -> Examples:
    if examples.num_rows <= SAMPLE_EXAMPLES:
        return examples
    chosen = np.random.default_rng(0).choice(examples.num_rows, SAMPLE_EXAMPLES, replace=False)
    return Examples.of(examples.take(np.sort(chosen)))


def _layout(counts: dict[str, int], layers: int, hidden: int, dtype: str) -> StatesLayout:
    height = balanced_rows_per_chunk(counts["rows"], counts["tokens"], layers, hidden, dtype)
    return StatesLayout(counts["rows"], layers, hidden, height, dtype)


def _seconds_per_padded_token(store: Path, plan: dict[str, Any], encoder: Encoder) -> float:
    """Measured over batches of all lengths, the first pass not counted."""
    reader = PartReader(store, plan)
    parts = [reader.read(part) for part in all_parts(plan)]
    batches = [batch for part in parts for batch in part.all_batches(plan["batch_tokens"], encoder.pad_id)]
    spread = np.random.default_rng(0).permutation(len(batches))
    seconds, tokens = 0.0, 0
    for turn, at in enumerate([spread[0], *spread]):
        inputs = [part.to(encoder.device) for part in (batches[at].token_ids, batches[at].mask, batches[at].segments)]
        began = time.perf_counter()
        encoder.forward(*inputs)[-1].cpu()
        if turn:
            seconds += time.perf_counter() - began
            tokens += inputs[0].numel()
        if seconds > MEASURED_SECONDS:
            break
    return seconds / max(tokens, 1)


def _padded_tokens(store: Path, plan: dict[str, Any], encoder: Encoder, split: str) -> int:
    parts: list[Part] = [part for part in all_parts(plan) if part.split == split]
    reader = PartReader(store, plan)
    return sum(
        batch.mask.numel()
        for part in parts
        for batch in reader.read(part).all_batches(plan["batch_tokens"], encoder.pad_id)
    )


def _bytes_of(store: Path, split: str) -> int:
    """Of the small arrays and the examples."""
    files = [*(store / "states.zarr" / split).rglob("*"), store / "examples" / f"{split}.parquet"]
    return sum(file.stat().st_size for file in files if file.is_file())


def _choices(plan: dict[str, Any], splits: dict[str, dict[str, int]], columns: Columns, size: int) -> dict[str, int]:
    """Bytes of the states under cheaper rows, layers and types, for those that would be cheaper."""
    layers, hidden = len(plan["layers"]), plan["hidden"]
    rows = sum(counts["rows"] for counts in splits.values())
    examples = sum(counts["examples"] for counts in splits.values())
    row = row_bytes(layers, hidden, plan["dtype"])
    rest = size - rows * row
    found = {}
    if plan["rows"] != "cls" and plan["rows"] != "mean" and not columns.tags:
        found["--rows mean or cls"] = rest + examples * row
    if layers > 4:
        found["--layers -4:"] = rest + rows * row * 4 // layers
    found["--layers -1"] = rest + rows * row // layers
    for dtype in ("float16", "int8"):
        found[f"--dtype {dtype}"] = rest + rows * row_bytes(layers, hidden, dtype)
    return {name: value for name, value in found.items() if value < size}
