"""Ragged batches: flat rows of whole examples with offsets, and the reductions over them.

No padding is stored or computed: example ``i`` owns rows ``row_offsets[i]:row_offsets[i + 1]`` (half-open).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """The stored states of some examples.

    Attributes:
        hidden_states: ``[rows, layers, hidden]``, in the store's own precision.
        row_offsets: int64 ``[examples + 1]``, half-open, starting at 0.
        row_mask: bool ``[rows]``; False where a word gave no sub-token or was cut: its row is all zeros.
    """

    hidden_states: Tensor
    row_offsets: IntArray
    row_mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        """``(examples,)``: NumPy and scikit-learn see a column of examples, each with its own number of rows."""
        return (len(self),)

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Tensor: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any] | tuple[Any, ...]) -> Ragged: ...

    def __getitem__(self, key: Any) -> Tensor | Ragged:
        """One example's states ``[its rows, layers, hidden]``, or, for a slice, a mask or index array, a Ragged.

        Raises:
            IndexError: there is no such example.
        """
        examples = chosen_examples(key, len(self))
        if examples.ndim == 0:
            return self.hidden_states[self.row_offsets[examples] : self.row_offsets[examples + 1]]
        rows, offsets = flat_rows(self.row_offsets, examples)
        return Ragged(self.hidden_states[torch.from_numpy(rows)], offsets, self.row_mask[rows])


def chosen_examples(key: Any, count: int) -> IntArray:
    """The numbers of the examples that an index selects out of ``count``; 0-dimensional for a single example.

    The index is an integer, a slice, a mask or index array, or a tuple of one of these and ``...``, as in NumPy.

    Raises:
        IndexError: as :func:`resolved_index`, and for any other tuple.
    """
    parts = key if isinstance(key, tuple) else (key,)
    rest = [part for part in parts if part is not Ellipsis]
    if len(rest) > 1 or len(parts) - len(rest) > 1:
        raise IndexError(f"examples have one axis, not those of {key}")
    key = rest[0] if rest else slice(None)
    return np.arange(*key.indices(count), dtype=np.int64) if isinstance(key, slice) else resolved_index(key, count)


def resolved_index(index: ArrayLike, length: int) -> IntArray:
    """An index into ``length`` things as int64 in ``0 … length - 1``: an integer or index array of the same shape, or
    the positions where a mask is True.

    Raises:
        IndexError: out of range, a mask of another length, or not integers.
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
        least, most = array.min(), array.max()
        raise IndexError(f"index {least} of {length}" if least == most else f"indices {least} … {most} of {length}")
    array = array.astype(np.int64)
    return np.where(array < 0, array + length, array)


def offsets_of(lengths: IntArray) -> IntArray:
    """Half-open offsets ``[n + 1]`` of consecutive pieces of these lengths ``[n]``."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def flat_rows(row_offsets: IntArray, examples: IntArray) -> tuple[IntArray, IntArray]:
    """The rows ``[n]`` of some examples, in their order, and the offsets of these rows, ``[len(examples) + 1]``."""
    starts, lengths = row_offsets[examples], row_offsets[examples + 1] - row_offsets[examples]
    offsets = offsets_of(lengths)
    # One arange over all pieces, plus each piece's shift: no Python loop over examples.
    shift = np.repeat(starts - offsets[:-1], lengths)
    return np.arange(offsets[-1], dtype=np.int64) + shift, offsets


def segment_ids(offsets: Tensor, rows: int) -> Tensor:
    """The number of each row's example, ``[rows]``, for ``rows`` rows with offsets ``[examples + 1]``.

    Rows after the last offset get the number ``examples``. There is no host synchronisation, so CUDA graphs can record
    it.
    """
    return torch.searchsorted(offsets[1:], torch.arange(rows, device=offsets.device), right=True)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum over each example's rows: ``[rows, d]`` → ``[examples, d]``; no rows give zeros, and rows after the last
    offset are ignored.

    16-bit numbers are summed in float32. PyTorch's CPU kernel does so by itself; a sum in bfloat16 would stop growing
    where a row is below 1/256 of it.
    """
    wide = values.float() if values.element_size() == 2 else values
    total = wide.new_zeros(len(offsets), values.shape[-1]).index_add(0, segment_ids(offsets, len(wide)), wide)
    return total[:-1].to(values.dtype)


def segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    """Mean over each example's rows: ``[rows, d]`` → ``[examples, d]``; no rows give zeros."""
    return segment_sum(values, offsets) / offsets.diff().clamp(min=1).unsqueeze(-1).to(values.dtype)


def ordered_segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    """Like :func:`segment_mean` for 32-bit numbers, but deterministic on every device, and without gradients.

    Each example's rows are added in their order. On a CPU ``index_add`` does so too, and is faster; on a GPU it adds
    them in any order.
    """
    total = segment_sum(values, offsets) if values.device.type == "cpu" else ordered_segment_sum(values, offsets)
    return total / offsets.diff().clamp(min=1).unsqueeze(-1).to(values.dtype)


def ordered_segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum over each example's rows, one after another: ``[rows, d]`` → ``[examples, d]``; no rows give zeros."""
    return torch.segment_reduce(values, "sum", offsets=offsets, initial=0, unsafe=True)  # the offsets are unchecked


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Largest value over each example's rows: ``[rows, d]`` → ``[examples, d]``; no rows give zeros, and rows after
    the last offset are ignored.
    """
    index = segment_ids(offsets, len(values)).unsqueeze(-1).expand_as(values)
    start = values.new_zeros(len(offsets), values.shape[-1])
    return start.scatter_reduce(0, index, values, "amax", include_self=False)[:-1]


def segment_softmax(values: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over each example's rows, separately for each column: ``[rows, d]`` → ``[rows, d]``."""
    ids = segment_ids(offsets, len(values))
    powers = (values - segment_max(values.detach(), offsets)[ids]).exp()
    return powers / segment_sum(powers, offsets)[ids]


def pad(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Rows padded with zeros to ``[examples, longest, …]``, and the bool mask of real rows ``[examples, longest]``."""
    lengths = offsets.diff().unsqueeze(-1)
    mask = torch.arange(int(lengths.max()) if len(lengths) else 0, device=offsets.device) < lengths
    padded = values.new_zeros(*mask.shape, *values.shape[1:])
    padded[mask] = values
    return padded, mask
