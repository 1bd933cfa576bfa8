"""The states of a split, sliced like a NumPy array, mapped or fetched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.ragged import IntArray, resolved_index
from fusionkit.store.chunk_access import ChunkReader
from fusionkit.store.in_memory import LoadedStates, as_tensor, load, take_rows
from fusionkit.store.layout import ZARR_DTYPES, StatesLayout


class HiddenStates:
    """The states of a split, ``[rows, layers, hidden]``: sliced like a NumPy array.

    ``bfloat16`` states are returned as their bits (uint16) here and as ``torch.bfloat16`` by :meth:`gather`. ``int8``
    states are returned as float32, multiplied by their scales.
    """

    def __init__(self, blocks: ChunkReader, layout: StatesLayout) -> None:
        self._blocks = blocks
        self._layout = layout
        self.shape = layout.shape
        self.dtype: np.dtype[Any] = np.dtype("float32" if layout.dtype == "int8" else ZARR_DTYPES[layout.dtype])
        self.ndim = 3

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = np.asarray(self[:], dtype=dtype)
        return found

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Rows by integer, slice, mask or index array; layers and hidden by any NumPy index after it.

        Raises:
            IndexError: where NumPy would, and for new axes.
        """
        rows, *rest = _expanded(key)
        layers, rest = _layers_first(rest, self.shape[1])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                taken = self._run(start, max(start, stop), layers)
            else:
                taken = self._take(np.arange(start, stop, step, dtype=np.int64), layers)
            return np.asarray(taken[(slice(None), *rest)]) if rest else taken
        wanted = resolved_index(rows, len(self))
        taken = self._take(wanted.ravel(), layers)
        # Later index arrays are paired with this one, as in NumPy.
        at = np.arange(wanted.size).reshape(wanted.shape)
        return np.asarray(taken[(at, *rest)]) if rest or at.ndim != 1 else taken

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows of chosen layers as a tensor ``[len(rows), layers, hidden]``.

        Args:
            rows: int64, 0 or more, any order. layers: positions, as
                :mod:`fusionkit.store.layer_positions` defines them; None is all.

        Raises:
            IndexError: there is no such row or layer.

        The memory is layer-major, as in the store: the result is a transposed view.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} … {rows.max()} of {len(self)}")
        out = self._layers(rows, range(self.shape[1]) if layers is None else layers)
        return as_tensor(out, self._layout.dtype == "bfloat16")

    def chunk_of(self, rows: IntArray) -> IntArray:
        """The number of each row's chunk."""
        return rows // self._layout.rows_per_chunk

    def load(self, rows: IntArray, layers: Sequence[int], reuse: LoadedStates | None = None) -> LoadedStates:
        """Read rows (ascending, without repeats) into memory; as :func:`fusionkit.store.in_memory.load`."""
        return load(self._blocks, self._layout, rows, layers, reuse)

    def _run(self, start: int, stop: int, layers: slice) -> NDArray[Any]:
        """Consecutive rows ``[rows, layers, hidden]``: one copy from each chunk that holds some."""
        height = self._layout.rows_per_chunk
        out = np.empty((stop - start, len(range(self.shape[1])[layers]), self.shape[2]), self.dtype)
        for chunk in self._chunks(range(start // height, -(-stop // height) if stop > start else 0)):
            low, high = max(start, chunk * height), min(stop, (chunk + 1) * height)
            inside = slice(low - chunk * height, high - chunk * height)
            states, scales = self._blocks.read(chunk)
            block, place = states[layers, inside].transpose(1, 0, 2), out[low - start : high - start]
            if scales is None:
                place[:] = block
            else:
                np.multiply(block, scales[layers, inside].T[..., None], out=place)
        return out

    def _take(self, rows: IntArray, layers: slice) -> NDArray[Any]:
        """Rows in any order, ``[rows, layers, hidden]``."""
        return self._layers(rows, range(self.shape[1])[layers]).transpose(1, 0, 2)

    def _layers(self, rows: IntArray, layers: Sequence[int]) -> NDArray[Any]:
        """Rows in any order of the layers at these positions, ``[layers, rows, hidden]``."""
        out = np.empty((len(layers), len(rows), self.shape[2]), self.dtype)
        chunk_of = self.chunk_of(rows)
        for chunk in self._chunks(np.unique(chunk_of)):
            at = np.flatnonzero(chunk_of == chunk)
            local = rows[at] - chunk * self._layout.rows_per_chunk
            states, scales = self._blocks.read(chunk)
            for k, position in enumerate(layers):
                if len(at) == len(rows):
                    take_rows(states, scales, position, local, out[k])
                elif scales is None:
                    out[k, at] = states[position, local]
                else:
                    out[k, at] = states[position, local] * scales[position, local, None]
        return out

    def _chunks(self, wanted: Sequence[int] | IntArray) -> list[int]:
        """The chunks to read; they are announced, so that they can be fetched ahead."""
        chunks = [int(chunk) for chunk in wanted]
        self._blocks.announce(chunks)
        return chunks


def _expanded(key: Any) -> tuple[Any, ...]:
    """An index as a tuple whose first entry is for the rows; an Ellipsis is replaced by full slices."""
    parts = key if isinstance(key, tuple) else (key,)
    if not any(part is Ellipsis for part in parts):
        return parts or (slice(None),)
    at = next(k for k, part in enumerate(parts) if part is Ellipsis)
    # There are three axes, and `parts` contains the Ellipsis too.
    return (*parts[:at], *[slice(None)] * (4 - len(parts)), *parts[at + 1 :])


def _layers_first(rest: list[Any], count: int) -> tuple[slice, list[Any]]:
    """The layers to read for the index after the rows, and the index that is left to apply.

    For one layer or a slice of layers only these are read; for any other index all layers are read first.
    """
    if rest and isinstance(rest[0], (int, np.integer)) and not isinstance(rest[0], bool):
        position = int(resolved_index(rest[0], count))
        return slice(position, position + 1), [0, *rest[1:]]
    if rest and isinstance(rest[0], slice) and rest[0].step in (None, 1):
        return rest[0], [slice(None), *rest[1:]]
    return slice(None), rest
