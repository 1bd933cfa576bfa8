"""Chosen rows of a split read into memory as they are stored, by plain reads: no page of a mapped file stays behind.

Rows that lie side by side in a chunk are one read a layer, and so are rows with small gaps between them. What is read
keeps the store's precision; it becomes what training works in as it is gathered.
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
from fusionkit.store.chunk_access import ChunkReader
from fusionkit.store.layout import StatesLayout

SPARE = 16  # memory that is taken has a sixteenth to spare: windows differ in size by a little
GAP_BYTES = 64 << 10  # of a layer, between rows that are wanted: read along sooner than a read is begun anew


class LoadedStates:
    """Some rows and layers of a split in memory; they go by the numbers that they have in the split.

    Attributes:
        shape: of the whole split, ``[rows, layers, hidden]``. rows: int64, those that are here, ascending.
        arrays: by array of the layout what was read, ``[layers, rows, …]``.
    """

    def __init__(
        self,
        layout: StatesLayout,
        rows: IntArray,
        layers: Sequence[int],
        room: LoadedStates | None = None,
    ) -> None:
        self.shape = (layout.rows, layout.layers, layout.hidden)
        self.rows, self.layers = rows, list(layers)
        self.arrays: list[NDArray[Any]] = []
        self._memory: list[NDArray[np.uint8]] = []
        for array in layout.arrays:
            size = len(layers) * len(rows) * array.row_bytes
            held = None if room is None else room.give_up()
            if held is None or len(held) < size:
                held = None  # let go of before more is taken, or both would be held
                held = np.empty(size + size // SPARE, np.uint8)
            self._memory.append(held)
            self.arrays.append(held[:size].view(array.dtype).reshape(len(layers), len(rows), *array.chunk_shape[2:]))
        self._bfloat16 = layout.dtype == "bfloat16"

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Refused: it is not all there. Raises IndexError."""
        raise IndexError("some rows of a split are gathered, not sliced")

    def give_up(self) -> NDArray[np.uint8]:
        """The memory of the next array, which is here no more."""
        self.arrays = self.arrays[1:]
        return self._memory.pop(0)

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows and positions of layers, ``[len(rows), layers, hidden]``, a layer after another in memory.

        Raises:
            IndexError: a row that was not read. ValueError: such a layer.
        """
        at = np.searchsorted(self.rows, rows)
        if len(rows) and not (at.max() < len(self.rows) and np.array_equal(self.rows[at], rows)):
            raise IndexError("rows that were not read")
        picked = self.layers if layers is None else layers
        states, *scales = self.arrays
        out = np.empty((len(picked), len(rows), self.shape[2]), "float32" if scales else states.dtype)
        for k, place in enumerate(self.layers.index(layer) for layer in picked):
            if scales:
                np.multiply(states[place, at], scales[0][place, at, None], out=out[k])
            else:
                np.take(states[place], at, axis=0, out=out[k], mode="clip")
        tensor = torch.from_numpy(out)
        if self._bfloat16:
            tensor = tensor.view(torch.bfloat16)
        return tensor.transpose(0, 1)  # [rows, layers, hidden]


def load(
    blocks: ChunkReader, layout: StatesLayout, rows: IntArray, layers: Sequence[int], room: LoadedStates | None = None
) -> LoadedStates:
    """Read rows.

    Args:
        rows: int64, ascending, each once. layers: positions among the stored layers.
        room: what was loaded before and is needed no more: its memory is used again.

    Raises:
        StoreError: a chunk is missing or damaged.
    """
    found, height = LoadedStates(layout, rows, layers, room), layout.rows_per_chunk
    if not len(rows):
        return found
    pieces = [(int(rows[first]) // height, first, last) for first, last in _pieces(np.diff(rows // height) > 0)]
    blocks.announce([chunk for chunk, _, _ in pieces])
    for chunk, first, last in pieces:
        local = rows[first:last] - chunk * height
        for number, array in enumerate(layout.arrays):
            for a, b in _pieces(np.diff(local) > 1 + GAP_BYTES // array.row_bytes):
                start, stop = int(local[a]), int(local[b - 1]) + 1
                for k, layer in enumerate(layers):
                    out = found.arrays[number][k, first + a : first + b]
                    if stop - start == b - a:
                        blocks.copy(chunk, number, layer, start, out)
                    else:
                        spread = np.empty((stop - start, *out.shape[1:]), out.dtype)
                        blocks.copy(chunk, number, layer, start, spread)
                        np.take(spread, local[a:b] - start, axis=0, out=out, mode="clip")
    return found


def _pieces(parted: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Half-open pieces of things one more than ``parted``, which says of each two neighbours whether they are apart."""
    cuts = (np.flatnonzero(parted) + 1).tolist()
    return list(pairwise([0, *cuts, len(parted) + 1]))
