"""Chosen rows of a split, read into memory by plain reads: a memory map would keep its pages in memory.

Neighbouring rows of a chunk, also with small gaps between them, take one read per layer. The rows keep the store's
precision; :meth:`LoadedStates.gather` converts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.ragged import IntArray
from fusionkit.store.chunk_access import ChunkReader, ChunkStates
from fusionkit.store.layer_positions import positions_of
from fusionkit.store.layout import StatesLayout

SPARE = 16  # allocations are larger by a sixteenth, so that windows of slightly different sizes can reuse them
GAP_BYTES = 64 << 10  # between wanted rows of a layer: reading over a smaller gap is faster than a second read


class LoadedStates:
    """Some rows and layers of a split in memory, with the row numbers and layer positions of the whole split.

    Attributes:
        shape: of the whole split, ``[rows, layers, hidden]``. rows: int64, the rows held, ascending.
        positions: of the layers held. arrays: what was read of each array of the layout, ``[layers, rows, …]``.
    """

    def __init__(
        self,
        layout: StatesLayout,
        rows: IntArray,
        layers: Sequence[int],
        reuse: LoadedStates | None = None,
    ) -> None:
        self.shape = layout.shape
        self.rows, self.positions = rows, list(layers)
        self.arrays: list[NDArray[Any]] = []
        self._memory: list[NDArray[np.uint8]] = []
        for array in layout.arrays:
            size = len(layers) * len(rows) * array.row_bytes
            held = None if reuse is None else reuse.release()
            if held is None or len(held) < size:
                held = None  # freed first, so that both are never allocated at once
                held = np.empty(size + size // SPARE, np.uint8)
            self._memory.append(held)
            self.arrays.append(held[:size].view(array.dtype).reshape(len(layers), len(rows), *array.chunk_shape[2:]))
        self._bfloat16 = layout.dtype == "bfloat16"

    def release(self) -> NDArray[np.uint8]:
        """Remove the first array that is left, and return its memory."""
        self.arrays = self.arrays[1:]
        return self._memory.pop(0)

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows of the layers at these positions, ``[len(rows), layers, hidden]``, layer-major in memory.

        Raises:
            IndexError: a row was not read. ValueError: a layer was not read.
        """
        at = np.searchsorted(self.rows, rows)
        if len(rows) and not (at.max() < len(self.rows) and np.array_equal(self.rows[at], rows)):
            raise IndexError("rows that were not read")
        picked = self.positions if layers is None else layers
        states, scales = ChunkStates(*self.arrays)
        out = np.empty((len(picked), len(rows), self.shape[2]), states.dtype if scales is None else "float32")
        for k, position in enumerate(positions_of(picked, self.positions)):
            take_rows(states, scales, position, at, out[k])
        return as_tensor(out, self._bfloat16)


def take_rows(
    states: NDArray[Any], scales: NDArray[Any] | None, position: int, rows: IntArray, out: NDArray[Any]
) -> None:
    """Copy rows of one layer into ``out`` ``[rows, hidden]``, multiplied by their scales where there are any."""
    if scales is None:
        np.take(states[position], rows, axis=0, out=out, mode="clip")
    else:
        np.multiply(states[position, rows], scales[position, rows, None], out=out)


def as_tensor(states: NDArray[Any], bfloat16: bool) -> Tensor:
    """``[layers, rows, hidden]`` → a view ``[rows, layers, hidden]``; ``bfloat16`` states are given as their bits."""
    tensor = torch.from_numpy(states)
    return (tensor.view(torch.bfloat16) if bfloat16 else tensor).transpose(0, 1)


def load(
    blocks: ChunkReader, layout: StatesLayout, rows: IntArray, layers: Sequence[int], reuse: LoadedStates | None = None
) -> LoadedStates:
    """Read rows into memory.

    Args:
        rows: int64, ascending, without repeats. layers: positions, as :mod:`fusionkit.store.layer_positions` defines
            them. reuse: states that are no longer needed, whose memory is reused.

    Raises:
        StoreError: a chunk is missing or damaged.
    """
    found, height = LoadedStates(layout, rows, layers, reuse), layout.rows_per_chunk
    if not len(rows):
        return found
    pieces = [(int(rows[first]) // height, first, last) for first, last in _pieces(np.diff(rows // height) > 0)]
    blocks.announce([chunk for chunk, _, _ in pieces])
    for chunk, first, last in pieces:
        local = rows[first:last] - chunk * height
        for number, array in enumerate(layout.arrays):
            for a, b in _pieces(np.diff(local) > 1 + GAP_BYTES // array.row_bytes):
                start, stop = int(local[a]), int(local[b - 1]) + 1
                for k, position in enumerate(layers):
                    out = found.arrays[number][k, first + a : first + b]
                    if stop - start == b - a:
                        blocks.copy(chunk, number, position, start, out)
                    else:
                        spread = np.empty((stop - start, *out.shape[1:]), out.dtype)
                        blocks.copy(chunk, number, position, start, spread)
                        np.take(spread, local[a:b] - start, axis=0, out=out, mode="clip")
    return found


def _pieces(parted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open runs of neighbours; ``parted`` is True for each pair of neighbours between which a new run begins."""
    cuts = (np.flatnonzero(parted) + 1).tolist()
    return list(pairwise([0, *cuts, len(parted) + 1]))
