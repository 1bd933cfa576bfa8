"""Reading a store: memory-mapped states, offsets, examples, ragged batches of chosen examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fusionkit.errors import UsageError, unknown_name
from fusionkit.ragged import IntArray, Ragged, flat_rows
from fusionkit.store.chunks import map_chunk
from fusionkit.store.layout import ZARR_DTYPES, StatesLayout, chunk_path, examples_path, read_small
from fusionkit.store.manifest import read_manifest, split_layout, store_digest


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
        if isinstance(rows, slice):
            taken = self._take(np.arange(*rows.indices(len(self)), dtype=np.int64))
            return np.asarray(taken[(slice(None), *rest)]) if rest else taken
        wanted = positions(rows, len(self))
        taken = self._take(wanted.ravel())
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

    def _take(self, rows: IntArray) -> NDArray[Any]:
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        chunk_of = rows // self._layout.rows_per_chunk
        for chunk in np.unique(chunk_of):
            at = np.flatnonzero(chunk_of == chunk)
            local = rows[at] - chunk * self._layout.rows_per_chunk
            dense = bool((np.diff(local) == 1).all() and (np.diff(at) == 1).all())
            span = slice(int(local[0]), int(local[-1]) + 1)
            block = self._chunk(int(chunk))[:, span if dense else local]  # [layers, rows, hidden]
            out[slice(at[0], at[-1] + 1) if dense else at] = block.transpose(1, 0, 2)
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


class Split:
    """One split of a store.

    Attributes:
        hidden_states: ``[rows, layers, hidden]``. name: ``train``, ``validation`` or ``test``.
    """

    def __init__(self, store: Path, name: str, layout: StatesLayout) -> None:
        self.name = name
        self._store = store
        self.hidden_states = HiddenStates(store, name, layout)

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.row_offsets) - 1

    @cached_property
    def row_offsets(self) -> IntArray:
        """int64 ``[examples + 1]``, half-open."""
        return read_small(self._store, self.name, "row_offsets")

    @cached_property
    def row_mask(self) -> NDArray[np.bool_]:
        """bool ``[rows]``: False where a word has no state of its own."""
        return read_small(self._store, self.name, "row_mask")

    @cached_property
    def token_offsets(self) -> IntArray:
        """int64 ``[examples + 1]`` into the sub-tokens, whatever the rows are."""
        return read_small(self._store, self.name, "token_offsets")

    @cached_property
    def word_index(self) -> NDArray[np.int32]:
        """int32 ``[tokens]``: the word of each sub-token, -1 for special tokens."""
        return read_small(self._store, self.name, "word_index")

    @cached_property
    def examples(self) -> pd.DataFrame:
        """The source's columns, a line an example."""
        return pd.read_parquet(examples_path(self._store, self.name))

    def take(self, indices: ArrayLike, layers: Sequence[int] | None = None) -> Ragged:
        """The states of some examples, in the order given.

        Args:
            indices: example numbers or a mask. layers: positions among the stored layers; None is all.

        Raises:
            UsageError: the split has no such example.
        """
        try:
            examples = positions(indices, len(self))
        except IndexError as error:
            raise UsageError(
                f"no such example in {self.name}", expected=f"0 … {len(self) - 1}", received=str(error)
            ) from error
        rows, offsets = flat_rows(self.row_offsets, examples)
        return Ragged(self.hidden_states.gather(rows, layers), offsets, self.row_mask[rows])


class Store:
    """A complete store: ``store["train"]`` gives its splits.

    Attributes:
        path: its folder. manifest: everything known about it. layers: stored layer indices.
        rows: the kind of rows. digest: the short name of its identity.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.rows: str = self.manifest["rows"]
        self.layers: tuple[int, ...] = tuple(self.manifest["layers"])
        self.hidden: int = self.manifest["hidden"]
        self.digest = store_digest(self.manifest)
        self._splits: dict[str, Split] = {}

    @property
    def name(self) -> str:
        """What reports call it: the source's name."""
        return str(self.manifest.get("source", self.path.stem))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of its splits."""
        return tuple(self.manifest["splits"])

    def __getitem__(self, split: str) -> Split:
        if split not in self.manifest["splits"]:
            raise unknown_name("split", split, self.splits)
        if split not in self._splits:
            self._splits[split] = Split(self.path, split, split_layout(self.manifest, split))
        return self._splits[split]

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, splits={list(self.splits)}, rows={self.rows!r}, layers={self.layers})"


def open_store(path: str | Path) -> Store:
    """Open a complete store.

    Raises:
        StoreError: it does not exist, is unfinished, damaged, or of another format.

    Example:
        >>> store = open_store("conll.store")           # doctest: +SKIP
        >>> batch = store["train"].take([0, 5, 7])      # doctest: +SKIP
        >>> batch.hidden_states.shape                   # rows, layers, hidden  # doctest: +SKIP
        torch.Size([41, 7, 384])
    """
    return Store(Path(path))
