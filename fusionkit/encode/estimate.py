"""Estimate the cost of an encode before it starts: rows, bytes, files, time and memory.

A sample of each split is planned as an encode would plan it. Counts are scaled to the whole split, and are exact where
the sample is the whole split. Time is measured on forward passes over batches of all lengths.
"""

from __future__ import annotations

import math
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusionkit.encode.batches import PaddedBatch, PartReader, forward
from fusionkit.encode.batching import Batching
from fusionkit.encode.job import make_job
from fusionkit.encode.part_records import all_parts
from fusionkit.encode.parts import PartEncoder
from fusionkit.encode.pipeline import WRITERS, buffers_of
from fusionkit.encode.plan import write_plan
from fusionkit.encode.repeats import CACHED_BYTES
from fusionkit.encode.text_pairs import choose_pair_as, paired
from fusionkit.encoder import Encoder
from fusionkit.sources import Columns, Examples, Source, prepared
from fusionkit.specs import MASKED, PER_SEQUENCE, EncodeSpec, canonical_json
from fusionkit.store.chunks import compressed
from fusionkit.store.layout import CHUNK_BYTES, StatesLayout, balanced_rows_per_chunk, examples_path, row_bytes
from fusionkit.store.manifest import read_plan, sequences_of, split_layout
from fusionkit.store.presence import LM_HEAD, states_path

SAMPLE_EXAMPLES = 20_000  # per split; a larger split is scaled up from a sample of this size
MEASURED_SECONDS = 2.0
# Fragmented freed memory between two calls of trim_freed_memory, in batches' states, as measured.
FRAGMENTED_BATCHES = 64
# To measure what compression saves, this many stretches of neighbouring examples are compressed: together at most a
# chunk and these seconds of encoding.
STRETCHES = 2
COMPRESSED_SECONDS = 2.0


@dataclass(frozen=True)
class Estimate:
    """The cost of an encode.

    Attributes:
        rows: kind of rows. splits: examples, rows and tokens of each, and the sequences where pairs are stored as
            two. exact: True if nothing was scaled up.
        bytes, files: on disk. seconds: of planning and encoding, at this machine's present speed.
        memory: peak resident bytes. choices: the store's bytes under each cheaper choice.
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
    sizes = _sequences(source, columns, spec, encoder)
    sample = replace(source, splits={split: _sampled(examples) for split, examples in source.splits.items()})
    with tempfile.TemporaryDirectory(prefix="fusionkit-estimate-") as folder:
        store = Path(folder) / "sample"
        began = time.perf_counter()
        write_plan(make_job(sample, columns, store, spec, encoder))
        planning = time.perf_counter() - began
        plan = read_plan(store)
        batches = _batches(store, plan, encoder)
        per_token = _measured([batch for of_split in batches.values() for batch in of_split], encoder)
        # The peak of memory, read before the compression that only an estimate does.
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        squeezed = _ratio(store, plan, encoder, COMPRESSED_SECONDS / per_token if per_token else math.inf)
        small = {split: _small_files(store, split) for split in plan["splits"]}
        head = sum(path.stat().st_size for path in store.glob(LM_HEAD))
    ratio = 1.0 if plan["compression"] == "none" else squeezed
    splits: dict[str, dict[str, int]] = {}
    layouts: list[StatesLayout] = []
    seconds = 0.0
    size = len(canonical_json(plan)) + head  # the manifest is a little larger than the plan
    files = 2 + (head > 0)  # the manifest, the metadata of states.zarr, the LM head
    sampled = sum(fields["examples"] for fields in plan["splits"].values())
    for split, fields in plan["splits"].items():
        scale = sizes[split] / sequences_of(fields)
        counts = {name: round(fields[name] * scale) for name in ("sequences", "rows", "tokens") if name in fields}
        splits[split] = {"examples": source.splits[split].num_rows, **counts}
        layout = _layout(counts, len(plan["layers"]), plan["hidden"], plan["dtype"])
        layouts.append(layout)
        size += round(layout.chunks * layout.chunk_bytes * ratio) + round(sum(small[split]) * scale)
        files += (1 + len(layout.arrays)) * layout.chunks + len(small[split])  # a chunk has a record of its part
        padded = sum(batch.mask.numel() for batch in batches[split])
        seconds += (planning * fields["examples"] / sampled + padded * per_token) * scale
    on_cpu = encoder.device.type == "cpu"
    fragmented = FRAGMENTED_BATCHES * plan["batch_tokens"] * plan["hidden"] * 4 if on_cpu else 0
    # Buffers, blocks that are being written (on a GPU they belong to the buffers) and compressed blocks. Rows of
    # repeated sequences are added below.
    writers = WRITERS.get(encoder.device.type, 1)
    held = buffers_of(writers) + writers * (on_cpu + (spec.compress != "none"))
    blocks = held * max(layout.chunk_bytes for layout in layouts)
    return Estimate(
        rows=plan["rows"],
        splits=splits,
        exact=all(source.splits[split].num_rows == fields["examples"] for split, fields in plan["splits"].items()),
        bytes=size,
        files=files,
        seconds=seconds,
        memory=used + blocks + min(CACHED_BYTES, size) + min(fragmented, size),
        choices=_choices(plan, splits, columns, size, ratio, squeezed),
    )


def _sequences(source: Source, columns: Columns, spec: EncodeSpec, encoder: Encoder) -> dict[str, int]:
    """The number of sequences of each split; counted over all texts, because a sample has fewer repeated ones."""
    if choose_pair_as(spec.pair_as, columns, encoder) != "two":
        return {split: examples.num_rows for split, examples in source.splits.items()}
    checked, _ = prepared(source, columns)  # reads the whole source, not only the sample
    return {split: int(paired(examples, columns).is_first.sum()) for split, examples in checked.splits.items()}


def _sampled(examples: Examples) -> Examples:
    if examples.num_rows <= SAMPLE_EXAMPLES:
        return examples
    chosen = np.random.default_rng(0).choice(examples.num_rows, SAMPLE_EXAMPLES, replace=False)
    return Examples.of(examples.take(np.sort(chosen)))


def _layout(counts: dict[str, int], layers: int, hidden: int, dtype: str) -> StatesLayout:
    height = balanced_rows_per_chunk(counts["rows"], counts["tokens"], layers, hidden, dtype)
    return StatesLayout(counts["rows"], layers, hidden, height, dtype)


def _batches(store: Path, plan: dict[str, Any], encoder: Encoder) -> dict[str, list[PaddedBatch]]:
    """The batches that an encode of the plan would run, by split."""
    reader, found = PartReader(store, plan), {split: list[PaddedBatch]() for split in plan["splits"]}
    for part in all_parts(plan):
        found[part.split] += reader.read(part).all_batches(Batching.of(plan), encoder.pad_id)
    return found


def _measured(batches: list[PaddedBatch], encoder: Encoder) -> float:
    """Seconds per padded sub-token, from batches of all lengths; the first pass is not counted."""
    spread = np.random.default_rng(0).permutation(len(batches))
    seconds, tokens = 0.0, 0
    for turn, at in enumerate([*spread[:1], *spread]):
        began = time.perf_counter()
        forward(encoder, batches[at])[-1].cpu()
        if turn:
            seconds += time.perf_counter() - began
            tokens += batches[at].mask.numel()
        if seconds > MEASURED_SECONDS:
            break
    return seconds / max(tokens, 1)


def _ratio(store: Path, plan: dict[str, Any], encoder: Encoder, most_tokens: float) -> float:
    """Compressed bytes per byte of states, measured on stretches of neighbouring examples.

    Neighbouring rows of a store are similar (the words of one text), so rows drawn at random would compress worse.
    The stretches together have about ``most_tokens`` sub-tokens at most.
    """
    stretches, chosen = plan, all_parts(plan)
    layouts = {split: split_layout(plan, split) for split in plan["splits"]}
    share = min(most_tokens / max(sum(fields["tokens"] for fields in plan["splits"].values()), 1), 1.0)
    if share < 1 or sum(layout.chunks * layout.chunk_bytes for layout in layouts.values()) > CHUNK_BYTES:
        most = share * sum(layout.rows for layout in layouts.values())
        heights = {
            split: max(min(-(-layout.rows_per_chunk // STRETCHES), int(most / STRETCHES)), 1)
            for split, layout in layouts.items()
        }
        splits = {split: {**fields, "rows_per_chunk": heights[split]} for split, fields in plan["splits"].items()}
        stretches = {**plan, "splits": splits}
        found = all_parts(stretches)
        chosen = [found[(2 * k + 1) * len(found) // (2 * STRETCHES)] for k in range(STRETCHES)]
    part_encoder = PartEncoder(store, stretches, encoder)
    raw = squeezed = 0
    for part in chosen:
        for values in part_encoder.block(part).arrays().values():
            raw += values.nbytes
            squeezed += len(compressed(np.ascontiguousarray(values).reshape(-1).view(np.uint8)))
    return squeezed / raw if raw else 1.0


def _small_files(store: Path, split: str) -> list[int]:
    """The bytes of each file that a plan writes of a split: metadata, small arrays, examples."""
    files = [*(states_path(store) / split).rglob("*"), examples_path(store, split)]
    return [file.stat().st_size for file in files if file.is_file()]


def _choices(
    plan: dict[str, Any], splits: dict[str, dict[str, int]], columns: Columns, size: int, ratio: float, squeezed: float
) -> dict[str, int]:
    """The store's bytes under other rows, layers, dtypes and compression, for those that would be cheaper."""
    layers, dtype = len(plan["layers"]), plan["dtype"]
    rows = sum(counts["rows"] for counts in splits.values())
    sequences = sum(sequences_of(counts) for counts in splits.values())

    def stored(count: int, layers: int, dtype: str) -> int:
        return round(count * row_bytes(layers, plan["hidden"], dtype) * ratio)

    rest = size - stored(rows, layers, dtype)
    found = {}
    if plan["rows"] not in (*PER_SEQUENCE, MASKED) and not columns.tags:
        other = "last" if plan["encoder"].get("causal") else "cls"
        found[f"--rows mean or {other}"] = rest + stored(sequences, layers, dtype)
    if layers > 4:
        found["--layers -4:"] = rest + stored(rows, 4, dtype)
    found["--layers -1"] = rest + stored(rows, 1, dtype)
    for other in ("float16", "int8"):
        found[f"--dtype {other}"] = rest + stored(rows, layers, other)
    if plan["compression"] == "none":
        found["--compress zstd"] = rest + round(stored(rows, layers, dtype) * squeezed)
    return {name: value for name, value in found.items() if value < size}
