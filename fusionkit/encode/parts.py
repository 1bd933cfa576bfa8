"""One part of encoding: the states of one chunk, from sub-tokens to a durable file and its record.

An example that crosses a chunk's edge is encoded by both parts; each keeps its own rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from fusionkit.encode.batches import Part, PartInput, PartReader
from fusionkit.encode.output_blocks import TORCH_DTYPES, OutputBlock, PartBuffer, PartBufferPool, is_finite
from fusionkit.encode.part_records import PartRecord
from fusionkit.encode.repeats import RepeatCache
from fusionkit.encode.rows import batch_rows, forward
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError
from fusionkit.files import write_json
from fusionkit.memory import trim_freed_memory
from fusionkit.places import Place
from fusionkit.ragged import flat_rows
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import StatesLayout, chunk_path, part_path
from fusionkit.store.manifest import split_layout

# Parts between two calls of trim_freed_memory: after each part it would take 2.5 % of the time.
TRIM_EVERY = 8


class NotFiniteError(EncoderError):
    """States that the store's precision cannot hold, or that are no numbers at all."""


def compute_part(
    plan: dict[str, Any],
    encoder: Encoder,
    part: Part,
    inputs: PartInput,
    repeats: RepeatCache,
    buffer: PartBuffer,
    on_tokens: Callable[[int], None],
) -> None:
    """Encode the examples of a part; their rows are in ``buffer`` afterwards.

    Args:
        repeats: gives the rows of the examples that come more than once.
        on_tokens: called with the sub-tokens of each batch that is done.
    """
    layout = split_layout(plan, part.split)
    buffer.begin(layout)
    lengths = np.diff(inputs.offsets)
    for batch in inputs.batches(inputs.unique(), plan["batch_tokens"], encoder.pad_id):
        states = forward(encoder, batch)
        picked, ends = flat_rows(inputs.rows.row_offsets, batch.examples)
        batch_index = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
        target = picked + inputs.first_row
        keep = inputs.rows.mask[picked] & (target >= 0) & (target < layout.rows_per_chunk)
        for position, rows in batch_rows(states, plan["layers"], inputs, batch, picked[keep], batch_index[keep]):
            buffer.put(position, rows)
        # Freed before the next pass, which then gets the same memory, still in the CPU's caches.
        del states, rows
        buffer.assign(target[keep])
        on_tokens(int(lengths[batch.examples].sum()))
    again = inputs.repeated()
    cached = repeats.rows_of(part, inputs, np.unique(inputs.first_alike[again]))
    for example in again.tolist():
        repeated = cached[int(inputs.first_alike[example])]
        start, stop = (inputs.rows.row_offsets[example : example + 2] + inputs.first_row).tolist()
        low, high = max(start, 0), min(stop, layout.rows_per_chunk)  # it may cross the part's edges
        inside = slice(low - start, high - start)
        buffer.put_rounded(repeated.states[:, inside], None if repeated.scales is None else repeated.scales[:, inside])
        buffer.assign(np.arange(low, high))
    on_tokens(int(lengths[again].sum()))


def write_part(
    store: Place, plan: dict[str, Any], part: Part, block: OutputBlock, tokens: int, start: float
) -> PartRecord:
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


class ComputedPart(NamedTuple):
    """A part that is computed and not yet written.

    Attributes:
        tokens: sub-tokens of its input. start: when its work began, by ``time.perf_counter``.
        buffer: holds its rows. finish_transfer: gives them in the store's order, as
            :meth:`PartBuffer.start_transfer` says.
    """

    part: Part
    tokens: int
    start: float
    buffer: PartBuffer
    finish_transfer: Callable[[OutputBlock | None], OutputBlock]


class PartEncoder:
    """Encodes parts of one store, each in three steps: read, compute, write.

    :meth:`encode` calls them one after another. They may also run in three threads on different parts; each step
    takes the parts in the same order.

    Args:
        buffers: how many parts may be computed and not yet written.
    """

    def __init__(self, store: Place, plan: dict[str, Any], encoder: Encoder, buffers: int = 1) -> None:
        self._store, self._plan, self._encoder = store, plan, encoder
        self._reader = PartReader(store, plan)
        # A second reader: repeated sequences are looked up while the next part is read.
        self._repeats = RepeatCache(store, plan, encoder, PartReader(store, plan), TORCH_DTYPES[plan["dtype"]])
        self._buffers = PartBufferPool(buffers, lambda: buffer_for(plan, encoder))
        self._block: OutputBlock | None = None  # used again for each part that is written
        self._computed = 0

    def read(self, part: Part) -> PartInput:
        """The input of a part."""
        return self._reader.read(part)

    def compute(self, part: Part, inputs: PartInput, start: float, on_tokens: Callable[[int], None]) -> ComputedPart:
        """Run the encoder over a part's input; waits while all buffers are in use."""
        buffer = self._buffers.take()
        try:
            compute_part(self._plan, self._encoder, part, inputs, self._repeats, buffer, on_tokens)
            self._computed += 1
            if self._computed % TRIM_EVERY == 0:
                trim_freed_memory()
            return ComputedPart(part, inputs.tokens, start, buffer, buffer.start_transfer())
        except BaseException:
            self._buffers.give(buffer)
            raise

    def write(self, computed: ComputedPart, check: Callable[[], object] = lambda: None) -> PartRecord:
        """Write a part's chunks and its record; its buffer is free afterwards.

        Args:
            check: called before anything is written; what it raises ends the part.

        Raises:
            NotFiniteError: states that the store's precision cannot hold; see :func:`not_finite`.
        """
        try:
            self._block = computed.finish_transfer(self._block)
            check()
            record = write_part(self._store, self._plan, computed.part, self._block, computed.tokens, computed.start)
            self._repeats.written(computed.part)
            return record
        finally:
            self._buffers.give(computed.buffer)

    def encode(
        self, part: Part, on_tokens: Callable[[int], None] = lambda _: None, check: Callable[[], object] = lambda: None
    ) -> PartRecord:
        """One part: all three steps.

        Raises:
            NotFiniteError: with the layer, its largest value and the dtype to use.
        """
        start = time.perf_counter()
        computed = self.compute(part, self.read(part), start, on_tokens)
        try:
            return self.write(computed, check)
        except NotFiniteError as error:
            raise not_finite(self._store, self._plan, self._encoder, part) from error


def buffer_for(plan: dict[str, Any], encoder: Encoder, dtype: str | None = None) -> PartBuffer:
    """A buffer for any part of a plan, in the store's precision unless another is given."""
    layouts: list[StatesLayout] = [split_layout(plan, split) for split in plan["splits"]]
    return PartBuffer(layouts, TORCH_DTYPES[dtype or plan["dtype"]], encoder.device)


def not_finite(store: Place, plan: dict[str, Any], encoder: Encoder, part: Part) -> NotFiniteError:
    """The error for a part that :func:`write_part` refused: its states are computed again, in float32."""
    buffer, reader = buffer_for(plan, encoder, "float32"), PartReader(store, plan)
    repeats = RepeatCache(store, plan, encoder, reader, torch.float32)
    compute_part(plan, encoder, part, reader.read(part), repeats, buffer, lambda _: None)
    block = buffer.start_transfer()(None).states  # [layers, rows, hidden]
    stored = torch.float32 if plan["dtype"] == "int8" else TORCH_DTYPES[plan["dtype"]]
    position = next(k for k in range(len(block)) if not bool(torch.isfinite(block[k].to(stored)).all()))
    largest = float(block[position].nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf).abs().max())
    nan = bool(torch.isnan(block[position]).any())
    return NotFiniteError(
        f"layer {plan['layers'][position]} of encoder {plan['encoder']['name']!r} is not finite in {plan['dtype']}",
        expected=f"numbers up to {torch.finfo(stored).max:g}",
        received="NaN" if nan else f"a largest value of {largest:g}",
        remedy="encode with --dtype bfloat16 or float32"
        if not nan and np.isfinite(largest)
        else "check the encoder's weights, and --compute-dtype",
    )
