"""The minibatches of a draw whose stored states are larger than memory: the states of a few chunks are read at a time.

A window has the minibatches that begin in it. Its last minibatch may have examples of the next window, which are then
read twice. So minibatches are the same as without windows.
"""

from __future__ import annotations

import numpy as np

from fusionkit.dataset.split import ChunkedStates, States, TaskSplit
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.ragged import IntArray


class WindowedDraw:
    """A draw in the order of each epoch.

    Args:
        layers: the positions of the layers that the run's fusion reads. size: examples per minibatch. windowed: hold
            only the states of one window in memory; otherwise each minibatch reads the draw's own states.
    """

    def __init__(self, draw: TaskSplit, layers: tuple[int, ...], order: Sampler, size: int, windowed: bool) -> None:
        self.draw, self._layers, self._order, self._size = draw, layers, order, size
        self._minibatches = max(-(-len(draw) // size), 1)
        self._windowed = windowed and isinstance(draw.states, ChunkedStates)
        self._epoch: tuple[int, IntArray, list[int]] = (0, np.zeros(0, dtype=np.int64), [])
        self._window: tuple[tuple[int, int], States] | None = None

    def minibatch(self, number: int) -> tuple[IntArray, TaskSplit]:
        """The examples of a minibatch, counted from 0 through all epochs, and the draw over states that have theirs."""
        epoch, step = number // self._minibatches + 1, number % self._minibatches
        return self._of(epoch)[0][step * self._size : (step + 1) * self._size], self._split(epoch, step)

    def size_of(self, number: int) -> int:
        """How many examples a minibatch has."""
        return min(self._size, len(self.draw) - number % self._minibatches * self._size)

    def _split(self, epoch: int, step: int) -> TaskSplit:
        """The draw over states that include those of this step's examples."""
        if not self._windowed:
            return self.draw
        order, ends = self._of(epoch)
        number = int(np.searchsorted(ends, step * self._size, side="right"))
        if self._window is None or self._window[0] != (epoch, number):
            first, last = (-(-end // self._size) * self._size for end in ([0, *ends][number], ends[number]))
            rows = self.draw.subset(order[first:last]).rows
            old = None if self._window is None else self._window[1]
            assert isinstance(self.draw.states, ChunkedStates)
            self._window = (epoch, number), self.draw.states.load(np.unique(rows), self._layers, old)
        return self.draw.over(self._window[1], self.draw.rows)

    def _of(self, epoch: int) -> tuple[IntArray, list[int]]:
        """The order of an epoch, and where each of its windows ends."""
        if self._epoch[0] != epoch:
            windows = self._order.windows(epoch)
            self._epoch = epoch, self._order.examples(epoch), np.cumsum([len(each) for each in windows]).tolist()
        return self._epoch[1:]
