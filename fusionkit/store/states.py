"""The states of a split: chunk files mapped into memory, sliced like a NumPy array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fusionkit.ragged import IntArray
from fusionkit.store.chunks import map_chunk
from fusionkit.store.layout import ZARR_DTYPES, StatesLayout, chunk_path


class HiddenStates:
    """The states of a split, ``[rows, layers, hidden]``: sliced like a NumPy array, read by memory map.

    ``bfloat16`` states come as their bits (uint16) here and as ``torch.bfloat16`` from :meth:`gather`.
    """

    def __init__(self, store: Path, split: str, layout: StatesLayout) -> None:
        self._paths = [chunk_path(store, split, chunk) for chunk in range(layout.chunks)]
        self._maps: list[NDArray[Any] | None] = [None] * layout.chunks
        self._layout = layout
        self.shape = (layout.rows, layout.layers, layout.hidden)
        self.dtype: np.dtype[Any] = np.dtype(ZARR_DTYPES[layout.dtype])
        self.ndim = 3

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = np.asarray(self[:], dtype=dtype)
        return found

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Rows by integer, slice, mask or index array; layers and hidden by any NumPy index behind.

        Raises:
            IndexError: where NumPy would, and for new axes.
        """
        rows, *rest = _written_out(key)
        layers, rest = _layers_first(rest, self.shape[1])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                taken = self._run(start, max(start, stop), layers)
            else:
                taken = self._take(np.arange(start, stop, step, dtype=np.int64), layers)
            return np.asarray(taken[(slice(None), *rest)]) if rest else taken
        wanted = positions(rows, len(self))
        taken = self._take(wanted.ravel(), layers)
        # Index arrays behind are paired with this one, as NumPy pairs them.
        at = np.arange(wanted.size).reshape(wanted.shape)
        return np.asarray(taken[(at, *rest)]) if rest or at.ndim != 1 else taken

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows of chosen layers as a tensor ``[len(rows), layers, hidden]``.

        Args:
            rows: int64, 0 or more, any order. layers: positions among the stored layers; None is all.

        Raises:
            IndexError: there is no such row or layer.

        The memory behind is layer-major, as in the store: the result is a transposed view.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"rows {rows.min()} … {rows.max()} of {len(self)}")
        picked = list(range(self.shape[1])) if layers is None else list(layers)
        out = np.empty((len(picked), len(rows), self.shape[2]), self.dtype)  # [layers, rows, hidden]
        chunk_of = rows // self._layout.rows_per_chunk
        for chunk in np.unique(chunk_of):
            at = np.flatnonzero(chunk_of == chunk)
            local = rows[at] - chunk * self._layout.rows_per_chunk
            source = self._chunk(int(chunk))
            whole = len(at) == len(rows)
            for k, layer in enumerate(picked):
                if whole:
                    np.take(source[layer], local, axis=0, out=out[k], mode="clip")
                else:
                    out[k, at] = source[layer, local]
        tensor = torch.from_numpy(out)
        if self._layout.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.transpose(0, 1)  # [rows, layers, hidden]

    def _run(self, start: int, stop: int, layers: slice) -> NDArray[Any]:
        """Consecutive rows: one copy out of each chunk they touch."""
        height = self._layout.rows_per_chunk
        first = start // height
        if start < stop <= (first + 1) * height:
            block = self._chunk(first)[layers, start - first * height : stop - first * height]
            return block.transpose(1, 0, 2).copy()  # [layers, rows, hidden] → [rows, layers, hidden]
        out = np.empty((stop - start, len(range(self.shape[1])[layers]), self.shape[2]), self.dtype)
        for chunk in range(first, -(-stop // height) if stop > start else first):
            low, high = max(start, chunk * height), min(stop, (chunk + 1) * height)
            block = self._chunk(chunk)[layers, low - chunk * height : high - chunk * height]
            out[low - start : high - start] = block.transpose(1, 0, 2)
        return out

    def _take(self, rows: IntArray, layers: slice) -> NDArray[Any]:
        """Rows in any order."""
        out = np.empty((len(rows), len(range(self.shape[1])[layers]), self.shape[2]), self.dtype)
        chunk_of = rows // self._layout.rows_per_chunk
        for chunk in np.unique(chunk_of):
            at = np.flatnonzero(chunk_of == chunk)
            local = rows[at] - chunk * self._layout.rows_per_chunk
            out[at] = self._chunk(int(chunk))[layers, local].transpose(1, 0, 2)
        return out

    def _chunk(self, chunk: int) -> NDArray[Any]:
        found = self._maps[chunk]
        if found is None:
            found = self._maps[chunk] = map_chunk(self._paths[chunk], self._layout)
        return found


def positions(index: ArrayLike, length: int) -> IntArray:
    """An integer, index array or mask over ``length`` things as int64 in ``0 … length - 1``, of the same shape.

    Raises:
        IndexError: out of range, a mask of another length, or no integers.
    """
    array = np.asarray(index)
    if array.dtype == bool:
        if array.shape != (length,):
            raise IndexError(f"a mask of shape {array.shape} for {length}")
        return np.flatnonzero(array)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise IndexError(f"indices of {array.dtype}, not integers")
    if array.size and not (array.min() >= -length and array.max() < length):
        raise IndexError(f"indices {array.min()} … {array.max()} of {length}")
    array = array.astype(np.int64)
    return np.where(array < 0, array + length, array)


def _written_out(key: Any) -> tuple[Any, ...]:
    """An index as a tuple that begins with the rows, an Ellipsis replaced by what it stands for."""
    parts = key if isinstance(key, tuple) else (key,)
    if not any(part is Ellipsis for part in parts):
        return parts or (slice(None),)
    at = next(k for k, part in enumerate(parts) if part is Ellipsis)
    # Three axes, and the Ellipsis itself is among the parts.
    return (*parts[:at], *[slice(None)] * (4 - len(parts)), *parts[at + 1 :])


def _layers_first(rest: list[Any], count: int) -> tuple[slice, list[Any]]:
    """The layers to read for an index behind the rows, and the index that is left to apply.

    A layer or a slice of layers is read alone; anything else is picked from all of them.
    """
    if rest and isinstance(rest[0], (int, np.integer)) and not isinstance(rest[0], bool):
        layer = int(positions(rest[0], count))
        return slice(layer, layer + 1), [0, *rest[1:]]
    if rest and isinstance(rest[0], slice) and rest[0].step in (None, 1):
        return rest[0], [slice(None), *rest[1:]]
    return slice(None), rest
