"""The order of the examples in an epoch. It depends on ``data_seed``, the epoch and the store, and on nothing else.

    shuffle   a permutation of all examples
    window    the chunks in a random order, then the examples of a few chunks at a time in a random order

An example belongs to the chunk in which it begins.
"""

from __future__ import annotations

import numpy as np

from fusionkit.dataset.draws import epoch_order, window_order
from fusionkit.dataset.split import ChunkedStates, TaskSplit
from fusionkit.dataset.stores import Stores, shares_of
from fusionkit.ragged import IntArray
from fusionkit.specs import SHUFFLE, WINDOW

AUTO_BYTES = 8 << 30  # of train's states in float32, all stored layers; the same on every machine


def usual_order(store: Stores) -> str:
    """``window`` where the train splits together are larger than :data:`AUTO_BYTES`, else ``shuffle``."""
    rows = 0.0
    for part in shares_of(store):
        if "train" in part.store.splits and len(train := part.store["train"]):
            rows += len(train.hidden_states) * part.count(len(train)) / len(train)
    return WINDOW if 4 * rows * len(store.layers) * store.hidden > AUTO_BYTES else SHUFFLE


def begin_chunks(split: TaskSplit) -> IntArray:
    """The chunk in which each example begins, or the next one where it has no rows; 0 for states without chunks."""
    if not isinstance(split.states, ChunkedStates) or not len(split.rows):
        return np.zeros(len(split), dtype=np.int64)
    first = np.minimum(split.offsets[: -1 : split.sides], len(split.rows) - 1)
    return split.states.chunk_of(split.rows[first])


class Sampler:
    """Gives the order of the examples of one draw in each epoch. The draw is in the order of the store."""

    def __init__(self, split: TaskSplit, kind: str, data_seed: int) -> None:
        self._count, self._seed = len(split), data_seed
        self._chunks = None if kind == SHUFFLE else begin_chunks(split)

    def windows(self, epoch: int) -> list[IntArray]:
        """The examples in windows; only one window has to be in memory at a time."""
        if self._chunks is None:
            return [epoch_order(self._count, self._seed, epoch)]
        return window_order(self._chunks, self._seed, epoch)

    def examples(self, epoch: int) -> IntArray:
        """All examples in the order of this epoch."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *self.windows(epoch)])
