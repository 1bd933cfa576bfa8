"""One part of encoding: the states of one chunk, from sub-tokens to a durable file and its record.

An example that crosses a chunk's border is encoded by both parts; each keeps its own rows.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from fusionkit.encode.batches import Part, PartInput, PartReader, batch_rows, forward, gather_of
from fusionkit.encode.batching import Batching
from fusionkit.encode.output_blocks import TORCH_DTYPES, PartBuffer, RowBlock, is_finite
from fusionkit.encode.part_records import PartRecord, plan_digest
from fusionkit.encode.repeats import RepeatCache
from fusionkit.encode.upload import BatchWork, ready
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError
from fusionkit.io.files import write_json
from fusionkit.io.places import Place
from fusionkit.machine.memory import out_of_memory, trim_freed_memory
from fusionkit.ragged import flat_rows, offsets_of
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import chunk_path, part_path
from fusionkit.store.manifest import split_layout

# Parts between two calls of trim_freed_memory: after each part it would take 2.5 % of the time.
TRIM_EVERY = 8
ON_GPU, ON_CPU = "choose --device cpu or a larger GPU", "free memory"  # remedies where memory does not suffice


class NotFiniteError(EncoderError):
    """States that are too large for the store's precision, or are NaN or infinite."""


class ReadPart(NamedTuple):
    """A part's input, and its batches of sequences that come once."""

    inputs: PartInput
    work: Iterator[BatchWork]


class ComputedPart(NamedTuple):
    """A part that is computed and not yet written.

    Attributes:
        tokens: sub-tokens of its input. start: when its work began, by ``time.perf_counter``.
        buffer: holds its rows. finish_transfer: the function that :meth:`PartBuffer.start_transfer` returned; it
            returns them in the store's order.
    """

    part: Part
    tokens: int
    start: float
    buffer: PartBuffer
    finish_transfer: Callable[[RowBlock | None], RowBlock]


class PartEncoder:
    """Encodes parts of one store, each in three steps: read, compute, write.

    :meth:`encode` runs the steps one after another. They may also run in separate threads on different parts: reading
    and computing in one thread each, writing in several.

    Args:
        buffers: how many parts may be computed and not yet written.
        dtype: of the rows, if it is not the store's; then nothing can be written.
    """

    def __init__(
        self, store: Place, plan: dict[str, Any], encoder: Encoder, buffers: int = 1, dtype: str | None = None
    ) -> None:
        encoder.refuse_device()
        self._store, self._plan, self._encoder, self._digest = store, plan, encoder, plan_digest(plan)
        self._layouts = {split: split_layout(plan, split) for split in plan["splits"]}
        self._dtype = TORCH_DTYPES[dtype or plan["dtype"]]
        self._reader = PartReader(store, plan)
        self._repeats = RepeatCache(store, plan, encoder, self._dtype, self._digest)
        # Free buffers, the most recently used first; None stands for a buffer that is made when it is needed.
        self._buffers: queue.LifoQueue[PartBuffer | None] = queue.LifoQueue()
        for _ in range(buffers):
            self._buffers.put(None)
        self._blocks: queue.LifoQueue[RowBlock] = queue.LifoQueue()  # not being written
        self._computed = 0

    def read(self, part: Part) -> ReadPart:
        """The input of a part, and for a GPU its batches too; EncoderError if memory does not suffice."""
        with self._reported_shortage(part, ON_CPU):
            inputs = self._reader.read(part)
            work = self._work(inputs, self._layouts[part.split].rows_per_chunk)
            return ReadPart(inputs, ready(work, self._encoder.device))

    def compute(self, part: Part, given: ReadPart, start: float, on_tokens: Callable[[int], None]) -> ComputedPart:
        """Run the encoder over a part's input; waits while all buffers are in use.

        Args:
            start: when the work on the part began. on_tokens: called with each done batch's number of sub-tokens.

        Raises:
            EncoderError: the memory of the encoder's device is too small.
        """
        buffer = self._buffers.get()
        with self._reported_shortage(part, ON_GPU if self._encoder.device.type == "cuda" else ON_CPU):
            try:
                buffer = buffer or PartBuffer([*self._layouts.values()], self._dtype, self._encoder.device)
                buffer.begin(self._layouts[part.split])
                inputs = given.inputs
                self._encode_unique(given, buffer, on_tokens)
                self._copy_repeated(part, inputs, buffer)
                on_tokens(int(np.diff(inputs.offsets)[inputs.repeated()].sum()))
                self._computed += 1
                if self._computed % TRIM_EVERY == 0:
                    trim_freed_memory()
                return ComputedPart(part, inputs.tokens, start, buffer, buffer.start_transfer())
            except BaseException:
                self._buffers.put(buffer)
                raise

    @contextlib.contextmanager
    def _reported_shortage(self, part: Part, remedy: str) -> Iterator[None]:
        """Raise EncoderError where memory runs out inside the block."""
        try:
            yield
        except Exception as error:
            if (lost := out_of_memory(error)) is None:
                raise
            raise EncoderError(
                f"part {part.chunk} of {part.split} cannot be encoded on {self._encoder.device}",
                received=lost,
                remedy=f"{remedy}, then run the same command again; or encode anew (--overwrite) with a smaller "
                "--max-length or with --compute-dtype bfloat16",
            ) from error

    def _encode_unique(self, given: ReadPart, buffer: PartBuffer, on_tokens: Callable[[int], None]) -> None:
        lengths = np.diff(given.inputs.offsets)
        for batch, gather, targets in given.work:
            states = forward(self._encoder, batch)
            for position, rows in batch_rows(states, self._plan["layers"], gather):
                buffer.put(position, rows)
            # Free them before the next pass, so that it gets the same memory, still in the CPU's caches.
            del states, rows
            buffer.assign(targets)
            on_tokens(int(lengths[batch.examples].sum()))

    def _work(self, inputs: PartInput, capacity: int) -> Iterator[BatchWork]:
        """The batches of sequences that come once, with their rows inside the part, which has ``capacity`` rows."""
        for batch in inputs.batches(inputs.unique(), Batching.of(self._plan), self._encoder.pad_id):
            picked, ends = flat_rows(inputs.rows.row_offsets, batch.examples)
            batch_index = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
            target = picked + inputs.first_row
            keep = inputs.rows.mask[picked] & (target >= 0) & (target < capacity)
            yield BatchWork(batch, gather_of(inputs, batch, picked[keep], batch_index[keep]), target[keep])

    def _copy_repeated(self, part: Part, inputs: PartInput, buffer: PartBuffer) -> None:
        repeated = inputs.repeated()
        known = self._repeats.rows_of(part, inputs, np.unique(inputs.first_alike[repeated]))
        # Rows that this process computed are on its device; rows read from chunks are in the CPU's memory.
        for device in {block.states.device for block in known.values()}:
            blocks = {number: block for number, block in known.items() if block.states.device == device}
            numbers = np.array(sorted(blocks))
            examples = repeated[np.isin(inputs.first_alike[repeated], numbers)]
            begins = offsets_of(np.array([blocks[number].states.shape[1] for number in numbers.tolist()]))
            begin = begins[np.searchsorted(numbers, inputs.first_alike[examples])]  # of each example in the blocks
            picked, ends = flat_rows(inputs.rows.row_offsets, examples)
            source = picked + np.repeat(begin - inputs.rows.row_offsets[examples], np.diff(ends))
            target = picked + inputs.first_row
            inside = (target >= 0) & (target < buffer.capacity)  # an example may cross the part's borders
            buffer.put_rounded([blocks[number] for number in numbers.tolist()], source[inside])
            buffer.assign(target[inside])

    def write(self, computed: ComputedPart, check: Callable[[], object] = lambda: None) -> PartRecord:
        """Write a part's chunks durably, then its record; its buffer is free afterwards.

        Args:
            check: called before the chunks are written, and again before the record; its errors pass through.

        Raises:
            NotFiniteError: states that the store's precision cannot hold; nothing is written. See :meth:`not_finite`.
            EncoderError: memory does not suffice.
        """
        with self._reported_shortage(computed.part, ON_CPU):
            return self._write(computed, check)

    def _write(self, computed: ComputedPart, check: Callable[[], object]) -> PartRecord:
        part = computed.part
        layout = self._layouts[part.split]
        block = None
        with contextlib.suppress(queue.Empty):
            block = self._blocks.get_nowait()
        try:
            block = computed.finish_transfer(block)
            check()
            if not is_finite(block):
                raise NotFiniteError(f"part {part.chunk} of {part.split} is not finite in {self._plan['dtype']}")
            values = block.arrays()
            stamps = {
                array.name: write_chunk(
                    chunk_path(self._store, part.split, part.chunk, array.name),
                    values[array.name],
                    array,
                    layout.compression,
                )
                for array in layout.arrays
            }
            first, last = layout.chunk_rows(part.chunk)
            record = PartRecord(
                part.split,
                part.chunk,
                rows=last - first,
                tokens=computed.tokens,
                seconds=round(time.perf_counter() - computed.start, 3),
                crc32c={name: stamp.crc32c for name, stamp in stamps.items()},
                sizes={name: stamp.size for name, stamp in stamps.items()},
                computed_with=self._encoder.computes_with,
                plan=self._digest,
            )
            check()
            write_json(part_path(self._store, part.split, part.chunk), asdict(record))
            self._repeats.written(part)
            return record
        finally:
            if block is not None:
                self._blocks.put(block)
            self.free(computed)

    def free(self, computed: ComputedPart) -> None:
        """Release a part's buffer for the next part."""
        self._buffers.put(computed.buffer)

    def encode(
        self, part: Part, on_tokens: Callable[[int], None] = lambda _: None, check: Callable[[], object] = lambda: None
    ) -> PartRecord:
        """Encode one part, in all three steps.

        Raises:
            NotFiniteError: it names the layer, its largest value and the dtype to use.
        """
        start = time.perf_counter()
        computed = self.compute(part, self.read(part), start, on_tokens)
        try:
            return self.write(computed, check)
        except NotFiniteError as error:
            raise self.not_finite(part) from error

    def block(self, part: Part) -> RowBlock:
        """A part's rows, without writing them; valid until the next part is computed."""
        computed = self.compute(part, self.read(part), time.perf_counter(), lambda _: None)
        self.free(computed)
        return computed.finish_transfer(None)

    def not_finite(self, part: Part) -> NotFiniteError:
        """The error for a part that :meth:`write` refused: its states are computed again, in float32."""
        plan = self._plan
        states = PartEncoder(self._store, plan, self._encoder, dtype="float32").block(part).states
        stored = torch.float32 if plan["dtype"] == "int8" else TORCH_DTYPES[plan["dtype"]]
        finite = [bool(torch.isfinite(layer.to(stored)).all()) for layer in states]
        if all(finite):
            return NotFiniteError(
                f"part {part.chunk} of {part.split} had numbers that are not finite; computed again, all are finite",
                remedy="check the memory of the machine and of the GPU, then run the same command again",
            )
        position = finite.index(False)
        largest = float(states[position].nan_to_num(0.0, posinf=torch.inf, neginf=-torch.inf).abs().max())
        nan = bool(torch.isnan(states[position]).any())
        return NotFiniteError(
            f"layer {plan['layers'][position]} of encoder {plan['encoder']['name']!r} is not finite in {plan['dtype']}",
            expected=f"numbers up to {torch.finfo(stored).max:g}",
            received="NaN" if nan else f"a largest value of {largest:g}",
            remedy="encode anew (--overwrite) with --dtype bfloat16 or float32"
            if not nan and np.isfinite(largest)
            else "check the encoder's weights, and --compute-dtype",
        )
