"""Minibatches of a draw, made once for all runs that train on them.

States are float32, and the layers of a row lie next to each other in memory: the fusions multiply them without a copy.
A draw that fits into memory is converted once, before the first epoch.
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
    """States in the memory of the CPU or of a device: ``[rows, layers, hidden]``."""

    def __init__(self, states: Tensor) -> None:
        self._states = states
        rows, layers, hidden = states.shape
        self.shape = (rows, layers, hidden)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Sliced like a NumPy array."""
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
    """Whether these layers are neighbours, so that selecting them makes a view and no copy."""
    return list(positions) == list(range(positions[0], positions[-1] + 1))


def layers_of(states: Tensor, positions: Sequence[int]) -> Tensor:
    """Some layers of ``[rows, layers, hidden]``: a view where they are neighbours."""
    if are_neighbours(positions):
        return states[:, positions[0] : positions[-1] + 1]
    return torch.stack([states[:, at] for at in positions], 1)


def layers_of_batch(batch: Batch, positions: Sequence[int]) -> Batch:
    """A minibatch with some of its layers."""
    states = layers_of(batch.states, positions)
    others = {name: dataclasses.replace(other, states=states) for name, other in batch.others.items()}
    place = batch.place if are_neighbours(positions) else None  # a copy lies elsewhere each time
    return dataclasses.replace(batch, states=states, others=others, place=place)


def held_bytes(split: TaskSplit, layers: Sequence[int]) -> int:
    """Bytes that :func:`load_into_memory` takes."""
    return 4 * len(split.rows) * len(layers) * split.states.shape[2]


def load_into_memory(
    split: TaskSplit, layers: Sequence[int], order: IntArray | None = None, device: torch.device = CPU
) -> TaskSplit:
    """Load the chosen layers of a split into memory.

    Args:
        order: the examples in the order of their rows in memory; rows that are read together are then one view.
        device: where the memory is.
    """
    at = np.arange(len(split.rows)) if order is None else flat_rows(split.offsets, split.sequences(order))[0]
    rows, first, places = np.unique(split.rows[at], return_index=True, return_inverse=True)
    lies = first.argsort().argsort()
    where = np.empty(len(split.rows), dtype=np.int64)
    where[at] = lies[places]
    return split.over(_read(split.states, rows, lies, layers, device), where)


def load_all_into_memory(
    splits: Sequence[TaskSplit], layers: Sequence[int], device: torch.device = CPU
) -> list[TaskSplit]:
    """Load several splits of one store; a row that several of them have is in memory once."""
    rows, places = np.unique(np.concatenate([split.rows for split in splits]), return_inverse=True)
    held = _read(splits[0].states, rows, np.arange(len(rows)), layers, device)
    ends = np.cumsum([len(split.rows) for split in splits])
    return [split.over(held, where) for split, where in zip(splits, np.split(places, ends[:-1]), strict=True)]


def _read(
    states: States, rows: IntArray, lies: IntArray, layers: Sequence[int], device: torch.device
) -> InMemoryStates:
    """Read rows in ascending order, each into its own place."""
    held = torch.empty(len(rows), len(layers), states.shape[2], device=device)
    for start in range(0, len(rows), READ_ROWS):
        piece = slice(start, start + READ_ROWS)  # in the order of the store, which reads fastest
        found = states.gather(rows[piece], tuple(layers)).to(device)
        held[torch.from_numpy(lies[piece]).to(device)] = found.float()
    return InMemoryStates(held)


class Minibatches:
    """The minibatches of one step, by data seed.

    Args:
        lasting: whether the same object is given again for another step, with new numbers in the same memory.
    """

    def __init__(self, batches: Mapping[int, Batch], lasting: bool = False) -> None:
        self.batches = batches
        self._views: dict[tuple[tuple[int, ...], Layers], list[Batch]] | None = {} if lasting else None

    def of(self, seeds: tuple[int, ...], positions: Layers) -> list[Batch]:
        """The minibatches of some seeds, with some of their layers. A smaller draw may have none left."""
        if self._views is None or not are_neighbours(positions):
            return [layers_of_batch(self.batches[seed], positions) for seed in seeds if seed in self.batches]
        if (seeds, positions) not in self._views:
            self._views[seeds, positions] = [layers_of_batch(self.batches[seed], positions) for seed in seeds]
        return self._views[seeds, positions]


class Loader(Protocol):
    """Gives the minibatches of all data seeds of a unit of runs."""

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; a seed without any left is not in the step."""
        ...


class SeedLoader(Protocol):
    """Gives the minibatches of one data seed."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Every example once, in minibatches, in the order of this epoch."""
        ...


class GatherLoader:
    """Gathers the rows of one minibatch at a time, from memory or from mapped chunks.

    Args:
        split: the draw, of the layers at ``layers``. device: where the minibatches go.
    """

    def __init__(
        self, split: TaskSplit, layers: Sequence[int], order: Sampler, batch_size: int, device: torch.device = CPU
    ) -> None:
        self.split, self.layers = split, tuple(layers)
        self._order, self._size, self._device = order, batch_size, device

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """As :class:`SeedLoader` says."""
        order = self._order.examples(epoch)
        for start in range(0, len(order), self._size):
            yield self.split.batch(order[start : start + self._size], self.layers).on(self._device)


class SeparateLoaders:
    """One :class:`SeedLoader` for each data seed."""

    def __init__(self, loaders: Mapping[int, SeedLoader]) -> None:
        self._loaders = loaders

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """As :class:`Loader` says."""
        feeds = {seed: self._loaders[seed].epoch(epoch) for seed in seeds}
        while batches := {seed: batch for seed, feed in feeds.items() if (batch := next(feed, None)) is not None}:
            yield Minibatches(batches)
