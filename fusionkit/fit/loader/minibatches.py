"""Minibatches of one data seed, made once for all runs that learn from them.

States come as float32 with each row's layers side by side in
memory, which the fusions' products read without a copy; a draw that fits is held that way from the start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.split import States, TaskSplit
from fusionkit.devices import CPU
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.ragged import IntArray, flat_rows

Layers = tuple[int, ...]
HELD_BYTES = 1 << 30  # of states held by all splits of a unit of runs
READ_ROWS = 4096


class InMemoryStates:
    """Rows in memory, a device's too, ready to be read: float32 ``[rows, layers, hidden]``."""

    def __init__(self, states: Tensor) -> None:
        self._states = states
        rows, layers, hidden = states.shape
        self.shape = (rows, layers, hidden)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """As NumPy has it."""
        return np.asarray(self._states[key].cpu())

    def select(self, rows: Tensor, out: Tensor) -> None:
        """Chosen rows, int64 ``[n]`` on the same device, into ``out``, ``[n, layers, hidden]``."""
        torch.index_select(self._states, 0, rows, out=out)

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows of chosen layers, ``[len(rows), layers, hidden]``."""
        states = self._states if layers is None else layers_of(self._states, layers)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            return states[rows[0] : rows[-1] + 1]
        return states.index_select(0, torch.from_numpy(rows).to(states.device))


def are_neighbours(positions: Sequence[int]) -> bool:
    """Whether these layers are a view of all of them, so that nothing is copied."""
    return list(positions) == list(range(positions[0], positions[-1] + 1))


def layers_of(states: Tensor, positions: Sequence[int]) -> Tensor:
    """Some layers of ``[rows, layers, hidden]``: a view where they are neighbours."""
    if are_neighbours(positions):
        return states[:, positions[0] : positions[-1] + 1]
    return torch.stack([states[:, at] for at in positions], 1)


def layers_of_batch(batch: Batch, positions: Sequence[int]) -> Batch:
    """A minibatch with some of its layers."""
    states = layers_of(batch.states, positions)
    slots = None if batch.slots is None else layers_of_batch(batch.slots, positions)
    place = batch.place if are_neighbours(positions) else None  # a copy lies elsewhere each time
    return dataclasses.replace(batch, states=states, slots=slots, place=place)


def held_bytes(split: TaskSplit, layers: Sequence[int]) -> int:
    """What :func:`hold` takes."""
    return 4 * len(split.rows) * len(layers) * split.states.shape[2]


def hold(
    split: TaskSplit, layers: Sequence[int], order: IntArray | None = None, device: torch.device = CPU
) -> TaskSplit:
    """The same split with its rows in memory, of these layers alone.

    Args:
        order: examples in the order in which their rows shall lie; those that are read together are then one view.
        device: whose memory.
    """
    at = np.arange(len(split.rows)) if order is None else flat_rows(split.offsets, split.sequences(order))[0]
    rows, first, places = np.unique(split.rows[at], return_index=True, return_inverse=True)
    lies = first.argsort().argsort()
    where = np.empty(len(split.rows), dtype=np.int64)
    where[at] = lies[places]
    return split.over(_read(split.states, rows, lies, layers, device), where)


def hold_together(splits: Sequence[TaskSplit], layers: Sequence[int], device: torch.device = CPU) -> list[TaskSplit]:
    """The same splits, of one store, with a row that several of them have once in memory."""
    rows, places = np.unique(np.concatenate([split.rows for split in splits]), return_inverse=True)
    held = _read(splits[0].states, rows, np.arange(len(rows)), layers, device)
    ends = np.cumsum([len(split.rows) for split in splits])
    return [split.over(held, where) for split, where in zip(splits, np.split(places, ends[:-1]), strict=True)]


def _read(
    states: States, rows: IntArray, lies: IntArray, layers: Sequence[int], device: torch.device
) -> InMemoryStates:
    """Ascending rows, and where each shall lie."""
    held = torch.empty(len(rows), len(layers), states.shape[2], device=device)
    for start in range(0, len(rows), READ_ROWS):
        piece = slice(start, start + READ_ROWS)  # in the order of the store, which reads fastest
        found = states.gather(rows[piece], tuple(layers)).to(device)
        held[torch.from_numpy(lies[piece]).to(device)] = found.float()
    return InMemoryStates(held)


class Minibatches:
    """A step's minibatches, by data seed.

    Args:
        lasting: whether this very object comes again, with other numbers in the same memory.
    """

    def __init__(self, batches: Mapping[int, Batch], lasting: bool = False) -> None:
        self.batches = batches
        self._views: dict[tuple[tuple[int, ...], Layers], list[Batch]] | None = {} if lasting else None

    def of(self, seeds: tuple[int, ...], positions: Layers) -> list[Batch]:
        """Those of some seeds with some of their layers; a draw that was given may have ended before others."""
        if self._views is None or not are_neighbours(positions):
            return [layers_of_batch(self.batches[seed], positions) for seed in seeds if seed in self.batches]
        if (seeds, positions) not in self._views:
            self._views[seeds, positions] = [layers_of_batch(self.batches[seed], positions) for seed in seeds]
        return self._views[seeds, positions]


class Loader(Protocol):
    """The minibatches of all data seeds of a unit of runs."""

    def steps(self, seed: int) -> int:
        """Minibatches of an epoch of one."""
        ...

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """Step by step the minibatches of these data seeds; one that has no more is left out."""
        ...


class SeedLoader(Protocol):
    """The minibatches of one data seed."""

    def __len__(self) -> int:
        """Minibatches of an epoch."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """All examples in minibatches, in the order of this epoch."""
        ...


class GatherLoader:
    """Minibatches whose rows are gathered one minibatch after another: of a draw in memory, or mapped.

    Args:
        split: the draw, of the layers at ``layers``. device: where they are wanted.
    """

    def __init__(
        self, split: TaskSplit, layers: Sequence[int], order: Sampler, batch_size: int, device: torch.device = CPU
    ) -> None:
        self.split, self.layers = split, tuple(layers)
        self._order, self._size, self._device = order, batch_size, device

    def __len__(self) -> int:
        """As :class:`SeedLoader` says."""
        return -(-len(self.split) // self._size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """As :class:`SeedLoader` says."""
        order = self._order.examples(epoch)
        for start in range(0, len(order), self._size):
            yield self.split.batch(order[start : start + self._size], self.layers).on(self._device)


class SeparateLoaders:
    """Feeders of their own for each data seed."""

    def __init__(self, feeders: Mapping[int, SeedLoader]) -> None:
        self._feeders = feeders

    def steps(self, seed: int) -> int:
        """As :class:`Loader` says."""
        return len(self._feeders[seed])

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """As :class:`Loader` says."""
        feeds = {seed: self._feeders[seed].epoch(epoch) for seed in seeds}
        while batches := {seed: batch for seed, feed in feeds.items() if (batch := next(feed, None)) is not None}:
            yield Minibatches(batches)
