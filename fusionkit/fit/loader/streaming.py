"""Splits larger than memory: one window of rows is read while runs train on the window before it.

A window holds the rows of some examples in the precision of the store, with the chosen layers only. It usually has the
examples that begin in a few chunks: each chunk is read once, with the rows of its last example in the next chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.pooled import PooledChunks
from fusionkit.dataset.split import ChunkedStates, States, TaskSplit, float_rows
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.machine.devices import CPU
from fusionkit.ragged import IntArray, flat_rows


class WindowReader:
    """Reads the windows of a split of chunked states, one ahead. It uses the same memory in every pass."""

    def __init__(self, split: TaskSplit, layers: Sequence[int]) -> None:
        self.split, self.layers = split, tuple(layers)
        self._rooms: list[States | None] = [None, None]

    def windows(self, windows: Sequence[IntArray]) -> Iterator[tuple[IntArray, States]]:
        """The examples of each window, with their states. The states are valid until the next window is asked for."""
        if not windows:
            return
        with ThreadPoolExecutor(1, thread_name_prefix="window") as reader:
            coming = reader.submit(self._load, windows[0], 0)
            for at, examples in enumerate(windows):
                here = coming.result()
                if at + 1 < len(windows):
                    coming = reader.submit(self._load, windows[at + 1], (at + 1) % 2)
                yield examples, here

    def states(self, examples: IntArray, here: States) -> Tensor:
        """The rows of some examples of a window, in order, float32 ``[rows, layers, hidden]``."""
        return float_rows(here.gather(self._rows(examples), self.layers))

    def bytes_of(self, examples: IntArray) -> int:
        """Bytes of a window of these examples."""
        states, rows = self.split.states, np.unique(self._rows(examples))
        if isinstance(states, PooledChunks):
            states, rows = states.pooled_rows(rows)
        return len(rows) * len(self.layers) * states.shape[2] * states.gather(rows[:0], self.layers).element_size()

    def _rows(self, examples: IntArray) -> IntArray:
        return self.split.rows[flat_rows(self.split.offsets, self.split.sequences(examples))[0]]

    def _load(self, examples: IntArray, room: int) -> States:
        assert isinstance(self.split.states, ChunkedStates)
        found = self.split.states.load(np.unique(self._rows(examples)), self.layers, self._rooms[room])
        self._rooms[room] = found
        return found


class StreamingLoader:
    """Gives the minibatches of a draw that is larger than memory, in the same order as from memory."""

    def __init__(
        self, split: TaskSplit, layers: Sequence[int], order: Sampler, batch_size: int, device: torch.device = CPU
    ) -> None:
        self._stream = WindowReader(split, layers)
        self._order, self._size, self._device = order, batch_size, device

    @property
    def memory(self) -> int:
        """Bytes of the two windows."""
        return 2 * max(map(self._stream.bytes_of, self._order.windows(0)), default=0)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Every example once, in minibatches. A minibatch at the edge of a window takes rows of both windows."""
        stream, taken, states = self._stream, list[IntArray](), list[Tensor]()
        for examples, here in stream.windows(self._order.windows(epoch)):
            start = 0
            while start < len(examples):
                some = examples[start : start + self._size - sum(map(len, taken))]
                start += len(some)
                taken.append(some)
                states.append(stream.states(some, here))
                if sum(map(len, taken)) == self._size:
                    yield self._batch(taken, states)
                    taken, states = [], []
        if taken:
            yield self._batch(taken, states)

    def _batch(self, taken: Sequence[IntArray], states: Sequence[Tensor]) -> Batch:
        both = states[0] if len(states) == 1 else torch.cat(list(states))
        return self._stream.split.batch(np.concatenate(taken), self._stream.layers, both).on(self._device)
