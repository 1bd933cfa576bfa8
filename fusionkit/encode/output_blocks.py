"""Buffers for a part's rows between the forward pass and the disk.

A buffer takes rows in the order in which they are computed, which costs one copy per layer. The writer's thread puts
them into the store's order. On a GPU a separate stream does that on the device, and copies the block to pinned memory
while the next part is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.machine.devices import sent_to
from fusionkit.machine.memory import page_aligned
from fusionkit.ragged import IntArray
from fusionkit.store.layout import ITEM_BYTES, StatesLayout

TORCH_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES}
INT8_LARGEST = 127
# The bits of the exponent. Only infinity and NaN have all of them set, so as integers they are the largest.
EXPONENT = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}
SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # signed integers by their number of bytes
PIECE_NUMBERS = 1 << 18  # checked at once: they stay in a core's cache


class RowBlock(NamedTuple):
    """Rows in the store's precision: those of one sequence, or of a chunk in the store's order with zeros where no row
    was computed.

    Attributes:
        states: ``[layers, rows, hidden]``. scales: float32 ``[layers, rows]`` of int8 states.
        finite: bool ``[]``, whether all states are finite, where a GPU has checked it.
    """

    states: Tensor
    scales: Tensor | None = None
    finite: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The states, and their scales if they have any: ``[layers, rows, …]``."""
        return (self.states,) if self.scales is None else (self.states, self.scales)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def part(self, rows: slice) -> RowBlock:
        """A view of some of the rows."""
        return RowBlock(*(tensor[:, rows] for tensor in self.tensors))

    def clone(self) -> RowBlock:
        """A copy in memory of its own."""
        return RowBlock(*(tensor.clone() for tensor in self.tensors))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The block as arrays, by the names of the store's arrays."""
        states = self.states.view(torch.uint16) if self.states.dtype == torch.bfloat16 else self.states
        found = {"hidden_states": states.numpy()}
        return found if self.scales is None else {**found, "scales": self.scales.numpy()}


class PartBuffer:
    """Holds one part's rows, in the order in which they are computed.

    The calls for a part: :meth:`begin`; for each batch :meth:`put` once a layer, or :meth:`put_rounded` once for all
    layers, then :meth:`assign` with the rows' places; :meth:`start_transfer`.

    Args:
        layouts: of all splits; the buffer is as large as their largest chunk. dtype: of the states held.

    Attributes:
        capacity: the chunk's number of rows. states, scales: of the rows held, ``[layers, capacity + 1, …]``. The last
            row stays zero: the chunk's rows that nothing was assigned to are copied from it.
    """

    def __init__(self, layouts: list[StatesLayout], dtype: torch.dtype, device: torch.device) -> None:
        rows = max((layout.layers * (layout.rows_per_chunk + 1) for layout in layouts), default=0)
        hidden = max((layout.hidden for layout in layouts), default=0)
        self._states = torch.empty(rows * hidden, dtype=dtype, device=device)
        self._scales = torch.empty(rows if dtype == torch.int8 else 0, dtype=torch.float32, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        # Pinned memory is slow to allocate, so once per buffer. On a CPU the writer has its own block.
        if self._stream:
            self._pinned = (
                torch.empty_like(self._states, device="cpu", pin_memory=True),
                torch.empty_like(self._scales, device="cpu", pin_memory=True),
            )
            self._finite = torch.empty((), dtype=torch.bool, pin_memory=True)

    def begin(self, layout: StatesLayout) -> None:
        """Start a chunk of this layout; the rows of the previous chunk are lost."""
        self.capacity = layout.rows_per_chunk
        self._held = _first_rows(self._states, self._scales, layout.layers, self.capacity + 1, layout.hidden)
        self.states, self.scales = self._held.states, self._held.scales
        for tensor in self._held.tensors:
            tensor[:, -1] = 0
        self._order = np.full(self.capacity, self.capacity, dtype=np.int64)  # the place of each of the chunk's rows
        self._filled = 0

    def put(self, position: int, rows: Tensor) -> None:
        """Add a batch's rows ``[n, hidden]`` of the layer at this position, rounded to the store's precision."""
        at = slice(self._filled, self._filled + len(rows))
        if self.scales is None:
            # On a CPU, converting bfloat16 to float16 through float32, which holds both, takes half the time.
            narrow = rows.dtype == torch.bfloat16 and self.states.dtype == torch.float16
            self.states[position, at] = rows.float() if narrow else rows  # rounds while it copies
        else:
            values, scales = rounded(rows, torch.int8)
            assert scales is not None
            self.states[position, at], self.scales[position, at] = values, scales

    def put_rounded(self, blocks: Sequence[RowBlock], rows: IntArray) -> None:
        """Add rows of all layers that are already in the store's precision.

        Args:
            blocks: on one device. rows: int64 ``[n]``, indices into the rows of all blocks, one block after another.
        """
        at = slice(self._filled, self._filled + len(rows))
        chosen = sent_to(torch.from_numpy(rows), blocks[0].states.device)
        for number, held in enumerate(self._held.tensors):
            joined = torch.cat([block.tensors[number] for block in blocks], 1)
            held[:, at] = sent_to(joined.index_select(1, chosen), held.device)

    def assign(self, targets: IntArray) -> None:
        """Assign the rows just added to the rows ``targets`` ``[n]`` of the chunk."""
        self._order[targets] = np.arange(self._filled, self._filled + len(targets))
        self._filled += len(targets)

    def start_transfer(self) -> Callable[[RowBlock | None], RowBlock]:
        """Start to put the rows into the store's order in the CPU's memory.

        Returns:
            a function for the writer's thread. It takes an older block to fill, or None, and returns the finished
            block, valid until :meth:`begin`.
        """
        if self._stream is None:
            return self._ordered
        self._stream.wait_stream(torch.cuda.current_stream(self._states.device))
        with torch.cuda.stream(self._stream):
            order = sent_to(torch.from_numpy(self._order), self._states.device)
            layers, _, hidden = self.states.shape
            block = _first_rows(*self._pinned, layers, self.capacity, hidden)._replace(finite=self._finite)
            ordered = RowBlock(*(tensor.index_select(1, order) for tensor in self._held.tensors))
            self._finite.copy_(_all_finite(ordered), non_blocking=True)
            for pinned, tensor in zip(block.tensors, ordered.tensors, strict=True):
                pinned.copy_(tensor, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)

        def finish(_: RowBlock | None) -> RowBlock:
            copied.synchronize()
            return block

        return finish

    def _ordered(self, block: RowBlock | None) -> RowBlock:
        """The rows in the store's order, by NumPy's take: it uses one thread and leaves the others to the encoder."""
        held, (layers, _, hidden) = self._held.tensors, self.states.shape
        if block is None or block.states.shape != (layers, self.capacity, hidden):
            block = RowBlock(*(page_aligned((layers, self.capacity, *each.shape[2:]), each.dtype) for each in held))
        for source, target in zip(held, block.tensors, strict=True):
            bits = SIGNED[source.element_size()]
            for rows, ordered in zip(source.view(bits).numpy(), target.view(bits).numpy(), strict=True):
                np.take(rows, self._order, axis=0, out=ordered, mode="clip")
        return block


def _first_rows(states: Tensor, scales: Tensor, layers: int, rows: int, hidden: int) -> RowBlock:
    """A block in the first elements of flat memory."""
    return RowBlock(
        states[: layers * rows * hidden].view(layers, rows, hidden),
        scales[: layers * rows].view(layers, rows) if len(scales) else None,
    )


def rounded(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Rows ``[n, hidden]`` in a store's precision, and for int8 the scale of each ``[n]``: largest value / 127."""
    if dtype != torch.int8:
        return rows.to(dtype), None
    rows = rows.float()
    largest = rows.abs().amax(dim=1)
    # Below the smallest normal number a scale would lose digits, and a value could become larger than 127.
    scales = (largest / INT8_LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    values = (rows / scales[:, None]).round_().to(torch.int8)
    return values, scales.where(largest != 0, 0.0)  # a row of zeros has the scale 0


def is_finite(block: RowBlock) -> bool:
    """Whether all states are finite; checked by one thread where no GPU has checked it.

    PyTorch's reductions would start a team of threads from the writer's thread. The forward pass, which has as many
    threads as there are cores, would wait for them: on two cores it took 1.2 times as long.
    """
    if block.finite is not None:
        return bool(block.finite)
    values = block.states if block.scales is None else block.scales
    bits = values.reshape(-1).view(SIGNED[values.element_size()]).numpy().view(f"u{values.element_size()}")
    doubled = np.empty(min(len(bits), PIECE_NUMBERS), bits.dtype)  # without the sign
    for start in range(0, len(bits), PIECE_NUMBERS):
        piece = bits[start : start + PIECE_NUMBERS]
        if np.left_shift(piece, 1, out=doubled[: len(piece)]).max() >= 2 * EXPONENT[values.dtype]:
            return False
    return True


def _all_finite(block: RowBlock) -> Tensor:
    """Whether all states are finite, as a tensor on their GPU: bool ``[]``."""
    values = block.states if block.scales is None else block.scales
    if not values.numel():
        return torch.ones((), dtype=torch.bool, device=values.device)
    # Minimum and maximum keep NaN. Over a chunk they take a thirtieth of the time of torch.isfinite.
    return torch.isfinite(torch.stack(values.aminmax())).all()
