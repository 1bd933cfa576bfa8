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

from fusionkit.encode.batches import PaddedBatch, Part, PartInput, read_part
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError, StoreError
from fusionkit.files import read_json, write_json
from fusionkit.ragged import flat_rows, segment_mean
from fusionkit.store.chunks import write_chunk, written_checksum
from fusionkit.store.layout import CHECKSUM_BYTES, chunk_path, part_path
from fusionkit.store.manifest import split_layout

TORCH_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class NotFiniteError(EncoderError):
    """States that the store's precision cannot hold, or that are no numbers at all."""


@dataclass(frozen=True)
class PartRecord:
    """What a finished part leaves behind: its checksum and its cost."""

    split: str
    chunk: int
    rows: int
    tokens: int
    crc32c: int
    seconds: float


def all_parts(plan: dict[str, Any]) -> list[Part]:
    """Every part of a plan."""
    return [Part(split, chunk) for split in plan["splits"] for chunk in range(split_layout(plan, split).chunks)]


def finished(store: Path, plan: dict[str, Any], part: Part) -> PartRecord | None:
    """The record of a part that is done, or None: no sound record, or not the chunk behind it that it tells of."""
    layout = split_layout(plan, part.split)
    chunk = chunk_path(store, part.split, part.chunk)
    start, stop = layout.chunk_rows(part.chunk)
    try:
        record = PartRecord(**read_json(part_path(store, part.split, part.chunk)))
        whole = chunk.stat().st_size == layout.chunk_bytes + CHECKSUM_BYTES
        sound = (
            (record.split, record.chunk, record.rows) == (part.split, part.chunk, stop - start)
            and record.crc32c == written_checksum(chunk)
            and type(record.tokens) is int
            and 0 <= record.tokens <= plan["splits"][part.split]["tokens"]
            and 0 <= record.seconds < float("inf")
        )
    except (StoreError, TypeError, OSError):
        return None
    return record if whole and sound else None


def compute_part(
    store: Path,
    plan: dict[str, Any],
    encoder: Encoder,
    part: Part,
    on_tokens: Callable[[int], None],
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, int]:
    """Encode the examples of a part.

    Args:
        on_tokens: called with the sub-tokens of each batch that is done. dtype: another than the store's.

    Returns:
        states ``[layers, rows, hidden]`` on the encoder's device, and how many sub-tokens were encoded.
    """
    layout = split_layout(plan, part.split)
    row_start, row_stop = layout.chunk_rows(part.chunk)
    given = read_part(store, plan, part)
    out = torch.zeros(
        (layout.layers, row_stop - row_start, layout.hidden),
        dtype=dtype or TORCH_DTYPES[layout.dtype],
        device=encoder.device,
    )
    for batch in given.batches(plan["batch_tokens"], encoder.pad_id):
        mask = batch.mask.to(encoder.device)
        states = encoder.forward(batch.token_ids.to(encoder.device), mask, batch.segments.to(encoder.device))
        _keep_rows(out, states, plan["layers"], given, batch)
        on_tokens(int(np.diff(given.offsets)[batch.examples].sum()))
    return out, int(given.offsets[-1])


def finish_part(store: Path, plan: dict[str, Any], part: Part, block: Tensor, tokens: int, start: float) -> PartRecord:
    """Check a part's states, write its chunk durably, then record it.

    Raises:
        NotFiniteError: states that are not finite in the store's precision; nothing is written.
    """
    layout = split_layout(plan, part.split)
    block = block.cpu()
    # Extremes show NaN and infinity as well as a test of each number, fifteen times as fast in float16.
    if block.numel() and not all(bool(extreme.isfinite()) for extreme in torch.aminmax(block)):
        raise NotFiniteError(f"part {part.chunk} of {part.split} is not finite in {plan['dtype']}")
    array = block.view(torch.uint16).numpy() if layout.dtype == "bfloat16" else block.numpy()
    crc = write_chunk(chunk_path(store, part.split, part.chunk), array, layout)
    seconds = round(time.perf_counter() - start, 3)
    record = PartRecord(part.split, part.chunk, block.shape[1], tokens, crc, seconds)
    write_json(part_path(store, part.split, part.chunk), asdict(record))
    return record


def _keep_rows(
    out: Tensor, states: tuple[Tensor, ...], layers: list[int], given: PartInput, batch: PaddedBatch
) -> None:
    """Copy a batch's rows into the part: single sub-tokens as they are, spans as their mean."""
    rows, examples, length = given.rows, batch.examples, batch.mask.shape[1]
    picked, _ = flat_rows(rows.row_offsets, examples)
    counts = np.diff(rows.row_offsets)[examples]
    line, start = np.repeat(batch.lines, counts), np.repeat(given.offsets[examples], counts)
    target = picked + given.first_row
    keep = rows.mask[picked] & (target >= 0) & (target < out.shape[1])
    picked, target = picked[keep], target[keep]
    # From a sub-token's place in the part to its place in the padded batch.
    padded = rows.first[picked] - start[keep] + line[keep] * length
    spans = (rows.last - rows.first)[picked]
    device = out.device
    index = torch.from_numpy(target).to(device)
    if bool((spans == 1).all()):
        source = torch.from_numpy(padded).to(device)
        for k, layer in enumerate(layers):
            # [batch, length, hidden] → [batch · length, hidden] → the rows wanted
            out[k].index_copy_(0, index, states[layer].flatten(0, 1).index_select(0, source).to(out.dtype))
        return
    # Each span's start and stop side by side are the offsets of the even pieces.
    pieces_at = np.stack([padded, padded + spans], axis=1).ravel()
    source_rows, bounds = flat_rows(pieces_at, 2 * np.arange(len(spans)))
    source, ends = torch.from_numpy(source_rows).to(device), torch.from_numpy(bounds).to(device)
    for k, layer in enumerate(layers):
        pieces = states[layer].flatten(0, 1).index_select(0, source).float()
        out[k].index_copy_(0, index, segment_mean(pieces, ends).to(out.dtype))


def not_finite(store: Path, plan: dict[str, Any], encoder: Encoder, part: Part) -> NotFiniteError:
    """The full account of a part that :func:`finish_part` refused: its states once more, in float32."""
    block, _ = compute_part(store, plan, encoder, part, lambda _: None, dtype=torch.float32)
    stored = block.to(TORCH_DTYPES[plan["dtype"]])
    at = next(k for k in range(len(block)) if not bool(torch.isfinite(stored[k]).all()))
    largest = float(block[at].nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf).abs().max())
    nan = bool(torch.isnan(block[at]).any())
    return NotFiniteError(
        f"layer {plan['layers'][at]} of encoder {plan['encoder']['name']!r} is not finite in {plan['dtype']}",
        expected=f"numbers up to {torch.finfo(TORCH_DTYPES[plan['dtype']]).max:g}",
        received="NaN" if nan else f"a largest value of {largest:g}",
        remedy="encode with --dtype bfloat16 or float32"
        if not nan and np.isfinite(largest)
        else "check the encoder's weights, and --compute-dtype",
    )
