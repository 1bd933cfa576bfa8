"""One part of encoding: the states of one chunk, from sub-tokens to a durable file and its record.

An example that crosses a chunk's edge is encoded by both parts; each keeps its own rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.encode.batches import PaddedBatch, Part, PartInput, PartReader
from fusionkit.encode.staging import TORCH_DTYPES, Block, Staging, is_finite
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError, StoreError
from fusionkit.files import parse_json, write_json
from fusionkit.places import Place, read_all, sizes_below
from fusionkit.ragged import flat_rows, segment_mean
from fusionkit.store.chunks import write_chunk, written_checksum
from fusionkit.store.layout import StatesLayout, chunk_path, part_path, states_path
from fusionkit.store.manifest import split_layout


class NotFiniteError(EncoderError):
    """States that the store's precision cannot hold, or that are no numbers at all."""


@dataclass(frozen=True)
class PartRecord:
    """What a finished part leaves behind.

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
    """The records of the parts that are done: sound records, and behind each the chunks that it tells of."""
    contents = read_all(store / "parts", [part_path(store, part.split, part.chunk).name for part in all_parts(plan)])
    sizes = {split: sizes_below(states_path(store) / split) for split in plan["splits"]}
    found = {}
    for part in all_parts(plan):
        path = part_path(store, part.split, part.chunk)
        if path.name not in contents:
            continue
        try:
            record = PartRecord(**parse_json(contents[path.name], path))
            if _is_sound(record, store, plan, part, sizes[part.split]):
                found[part] = record
        except (StoreError, TypeError, AttributeError, OSError):
            continue
    return found


def _is_sound(record: PartRecord, store: Place, plan: dict[str, Any], part: Part, sizes: dict[str, int]) -> bool:
    layout = split_layout(plan, part.split)
    start, stop = layout.chunk_rows(part.chunk)
    names = [array.name for array in layout.arrays]
    return (
        (record.split, record.chunk, record.rows) == (part.split, part.chunk, stop - start)
        and type(record.tokens) is int
        and 0 <= record.tokens <= plan["splits"][part.split]["tokens"]
        and 0 <= record.seconds < float("inf")
        and list(record.crc32c) == list(record.sizes) == names
        and all(_is_there(record, store, part, name, sizes) for name in names)
    )


def _is_there(record: PartRecord, store: Place, part: Part, array: str, sizes: dict[str, int]) -> bool:
    chunk = chunk_path(store, part.split, part.chunk, array)
    if sizes.get(str(chunk).removeprefix(f"{states_path(store) / part.split}/")) != record.sizes[array]:
        return False
    # An object on remote storage is whole or absent; a request a chunk would say no more.
    return not isinstance(chunk, Path) or written_checksum(chunk) == record.crc32c[array]


def compute_part(
    plan: dict[str, Any],
    encoder: Encoder,
    part: Part,
    given: PartInput,
    staging: Staging,
    on_tokens: Callable[[int], None],
) -> None:
    """Encode the examples of a part; their rows are in ``staging`` afterwards.

    Args:
        on_tokens: called with the sub-tokens of each batch that is done.
    """
    staging.begin(split_layout(plan, part.split))
    lengths = np.diff(given.offsets)
    for batch in given.batches(plan["batch_tokens"], encoder.pad_id):
        mask = batch.mask.to(encoder.device)
        states = encoder.forward(batch.token_ids.to(encoder.device), mask, batch.segments.to(encoder.device))
        _keep_rows(staging, states, plan["layers"], given, batch)
        on_tokens(int(lengths[batch.examples].sum()))


def finish_part(store: Place, plan: dict[str, Any], part: Part, block: Block, tokens: int, start: float) -> PartRecord:
    """Check a part's states, write its chunks durably, then record it.

    Raises:
        NotFiniteError: states that are not finite in the store's precision; nothing is written.
    """
    layout = split_layout(plan, part.split)
    if not is_finite(block):
        raise NotFiniteError(f"part {part.chunk} of {part.split} is not finite in {plan['dtype']}")
    values = block.arrays()
    stamps = {
        array.name: write_chunk(
            chunk_path(store, part.split, part.chunk, array.name), values[array.name], array, layout.compression
        )
        for array in layout.arrays
    }
    first, last = layout.chunk_rows(part.chunk)
    record = PartRecord(
        part.split,
        part.chunk,
        last - first,
        tokens,
        round(time.perf_counter() - start, 3),
        {name: stamp.crc32c for name, stamp in stamps.items()},
        {name: stamp.size for name, stamp in stamps.items()},
    )
    write_json(part_path(store, part.split, part.chunk), asdict(record))
    return record


def encode_part(
    store: Place, plan: dict[str, Any], encoder: Encoder, part: Part, on_tokens: Callable[[int], None]
) -> PartRecord:
    """One part from its input to its record, by itself.

    Raises:
        NotFiniteError: with the layer, its largest value and the dtype to use.
    """
    start = time.perf_counter()
    given = PartReader(store, plan).read(part)
    staging = staging_for(plan, encoder)
    compute_part(plan, encoder, part, given, staging, on_tokens)
    try:
        return finish_part(store, plan, part, staging.hand_over()(None), given.tokens, start)
    except NotFiniteError as error:
        raise not_finite(store, plan, encoder, part) from error


def staging_for(plan: dict[str, Any], encoder: Encoder, dtype: str | None = None) -> Staging:
    """Room for any part of a plan, in the store's precision unless another is given."""
    layouts: list[StatesLayout] = [split_layout(plan, split) for split in plan["splits"]]
    return Staging(layouts, TORCH_DTYPES[dtype or plan["dtype"]], encoder.device)


def _keep_rows(
    staging: Staging, states: tuple[Tensor, ...], layers: list[int], given: PartInput, batch: PaddedBatch
) -> None:
    """Keep a batch's rows: single sub-tokens as they are, spans as their mean."""
    rows, examples, length = given.rows, batch.examples, batch.mask.shape[1]
    picked, _ = flat_rows(rows.row_offsets, examples)
    counts = np.diff(rows.row_offsets)[examples]
    line, start = np.repeat(batch.lines, counts), np.repeat(given.offsets[examples], counts)
    target = picked + given.first_row
    keep = rows.mask[picked] & (target >= 0) & (target < staging.states.shape[1] - 1)
    picked, target = picked[keep], target[keep]
    # From a sub-token's place in the part to its place in the padded batch.
    padded = rows.first[picked] - start[keep] + line[keep] * length
    spans = (rows.last - rows.first)[picked]
    device = staging.states.device
    if bool((spans == 1).all()):
        source = torch.from_numpy(padded).to(device)
        for k, layer in enumerate(layers):
            # [batch, length, hidden] → [batch · length, hidden] → the rows wanted
            staging.put(k, states[layer].flatten(0, 1).index_select(0, source))
    else:
        # Each span's start and stop side by side are the offsets of the even pieces.
        pieces_at = np.stack([padded, padded + spans], axis=1).ravel()
        source_rows, bounds = flat_rows(pieces_at, 2 * np.arange(len(spans)))
        source, ends = torch.from_numpy(source_rows).to(device), torch.from_numpy(bounds).to(device)
        for k, layer in enumerate(layers):
            pieces = states[layer].flatten(0, 1).index_select(0, source).float()
            staging.put(k, segment_mean(pieces, ends))
    staging.placed(target)


def not_finite(store: Place, plan: dict[str, Any], encoder: Encoder, part: Part) -> NotFiniteError:
    """The full account of a part that :func:`finish_part` refused: its states once more, in float32."""
    staging = staging_for(plan, encoder, "float32")
    compute_part(plan, encoder, part, PartReader(store, plan).read(part), staging, lambda _: None)
    block = staging.states.cpu()  # [layers, rows, hidden]
    kept = torch.float32 if plan["dtype"] == "int8" else TORCH_DTYPES[plan["dtype"]]
    at = next(k for k in range(len(block)) if not bool(torch.isfinite(block[k].to(kept)).all()))
    largest = float(block[at].nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf).abs().max())
    nan = bool(torch.isnan(block[at]).any())
    return NotFiniteError(
        f"layer {plan['layers'][at]} of encoder {plan['encoder']['name']!r} is not finite in {plan['dtype']}",
        expected=f"numbers up to {torch.finfo(kept).max:g}",
        received="NaN" if nan else f"a largest value of {largest:g}",
        remedy="encode with --dtype bfloat16 or float32"
        if not nan and np.isfinite(largest)
        else "check the encoder's weights, and --compute-dtype",
    )
