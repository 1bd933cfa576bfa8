"""Sequences pooled when they are read: one row per sequence, the mean of its rows.

    f(mean_i z_i) = mean_i f(z_i)     for a fusion f that is an affine map of each row's states, the same at all rows

So such a fusion gives the same result as over all rows, and computes one row per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.split import ChunkedStates, States, TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.ragged import IntArray, flat_rows, offsets_of, segment_mean

PIECE_ROWS = 8192  # rows read at once: bounds the memory of their float32 copy


class PooledStates:
    """The means of sequences' states; row k is the mean of sequence k.

    Args:
        states: of all rows. rows: int64 ``[n]``, the rows of all sequences, concatenated.
        offsets: int64 ``[sequences + 1]`` into ``rows``; each sequence has at least one row.
    """

    def __init__(self, states: States, rows: IntArray, offsets: IntArray) -> None:
        self._states, self._rows, self._offsets = states, rows, offsets
        self.shape = (len(offsets) - 1, *states.shape[1:])

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Means of chosen sequences, float32 ``[len(rows), layers, hidden]``."""
        at, offsets = flat_rows(self._offsets, rows)
        found = torch.empty(len(rows), self.shape[1] if layers is None else len(layers), self.shape[2])
        cuts = np.flatnonzero(np.diff(offsets[:-1] // PIECE_ROWS)) + 1
        for piece in np.split(np.arange(len(rows)), cuts):
            if len(piece):
                start, stop = offsets[piece[0]], offsets[piece[-1] + 1]
                states = self._states.gather(self._rows[at[start:stop]], layers).float().contiguous()
                inside = torch.from_numpy(offsets[piece[0] : piece[-1] + 2] - start)
                found[piece[0] : piece[-1] + 1] = segment_mean(states.flatten(1), inside).view(-1, *found.shape[1:])
        return found


class PooledChunks(PooledStates):
    """The same of states in chunks, which can be read into memory a few at a time."""

    _states: ChunkedStates

    def chunk_of(self, rows: IntArray) -> IntArray:
        """The number of the chunk that each sequence begins in."""
        return self._states.chunk_of(self._rows[self._offsets[rows]])

    def pooled_rows(self, rows: IntArray) -> tuple[ChunkedStates, IntArray]:
        """The states that the means of these sequences are taken of, and the rows of them, ascending."""
        return self._states, np.unique(self._rows[flat_rows(self._offsets, rows)[0]])

    def load(self, rows: IntArray, layers: Sequence[int], reuse: PooledStates | None = None) -> PooledStates:
        """Read the rows of these sequences, ascending, into memory; other sequences cannot be read from the result."""
        states, needed = self.pooled_rows(rows)
        held = states.load(needed, layers, None if reuse is None else reuse._states)
        return PooledStates(held, self._rows, self._offsets)


def pooled(split: TaskSplit) -> TaskSplit:
    """The same examples, each sequence with one row; a sequence without rows keeps none, and its pooled vector is 0."""
    counts = np.diff(split.offsets)
    some = counts > 0
    kind = PooledChunks if isinstance(split.states, ChunkedStates) else PooledStates
    return replace(
        split,
        states=kind(split.states, split.rows, offsets_of(counts[some])),
        rows=np.arange(int(some.sum())),
        offsets=offsets_of(some.astype(np.int64)),
    )


def pooled_data(data: TaskData) -> TaskData:
    """All splits of a task pooled; unchanged where no sequence has more than one row."""
    splits = [data.train, data.validation, *data.scored_tests.values()]
    if all((np.diff(split.offsets) <= 1).all() for split in splits):
        return data
    made = {id(split): pooled(split) for split in splits}  # `test` may be the first of `tests`
    return replace(
        data,
        train=made[id(data.train)],
        validation=made[id(data.validation)],
        test=None if data.test is None else made[id(data.test)],
        tests={name: made[id(split)] for name, split in data.tests.items()},
    )
