"""Minibatches of a draw, made once for all runs that train on them.

States are float32, and the layers of a row lie next to each other in memory: the fusions multiply them without a copy.
A draw that fits into memory is converted once, before the first epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.split import States, TaskSplit
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.loader.streaming import StreamingLoader
from fusionkit.machine.devices import CPU
from fusionkit.ragged import IntArray, flat_rows

Layers = tuple[int, ...]
HELD_BYTES = 1 << 30  # the most bytes of states that all splits of a unit of runs hold in memory
READ_ROWS = 4096


class InMemoryStates:
    """States in the memory of the CPU or of a device: ``[rows, layers, hidden]``."""

    def __init__(self, states: Tensor) -> None:
        self._states = states
        rows, layers, hidden = states.shape
        self.shape = (rows, layers, hidden)

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
    """A split with the chosen layers in memory, its examples in this order: rows read together are then one view."""
    at = None if order is None else flat_rows(split.offsets, split.sequences(order))[0]
    return load_all_into_memory([split], layers, device, at)[0]


def load_all_into_memory(
    splits: Sequence[TaskSplit], layers: Sequence[int], device: torch.device = CPU, order: IntArray | None = None
) -> list[TaskSplit]:
    """Several splits of one store in memory; a row in several of them is held once.

    ``order``: the order of the rows in memory, as indices into the rows of all splits, one split after another.
    """
    rows = np.concatenate([split.rows for split in splits])
    order = np.arange(len(rows)) if order is None else order
    stored, first, places = np.unique(rows[order], return_index=True, return_inverse=True)
    lies = first.argsort().argsort()
    where = np.empty(len(rows), dtype=np.int64)
    where[order] = lies[places]
    held = _read(splits[0].states, stored, lies, layers, device)
    ends = np.cumsum([len(split.rows) for split in splits])
    return [split.over(held, own) for split, own in zip(splits, np.split(where, ends[:-1]), strict=True)]


def _read(
    states: States, rows: IntArray, lies: IntArray, layers: Sequence[int], device: torch.device
) -> InMemoryStates:
    """Read rows in ascending order, row ``rows[i]`` into place ``lies[i]``."""
    held = torch.empty(len(rows), len(layers), states.shape[2], device=device)
    for start in range(0, len(rows), READ_ROWS):
        piece = slice(start, start + READ_ROWS)  # in the order of the store, which reads fastest
        found = states.gather(rows[piece], tuple(layers)).to(device)
        held[torch.from_numpy(lies[piece]).to(device)] = found.float()
    return InMemoryStates(held)


class Minibatches:
    """The minibatches of one step, by data seed. A loader may yield the same object again with other numbers in it."""

    def __init__(self, batches: Mapping[int, Batch]) -> None:
        self.batches = batches
        self._views: dict[tuple[tuple[int, ...], Layers], list[Batch]] = {}

    def of(self, seeds: tuple[int, ...], positions: Layers) -> list[Batch]:
        """The minibatches of some seeds, with some of their layers. A seed with a smaller draw may have none left."""
        found = self._views.get((seeds, positions))
        if found is None:
            found = [layers_of_batch(self.batches[seed], positions) for seed in seeds if seed in self.batches]
            if are_neighbours(positions):  # a copy would keep the numbers of this step
                self._views[seeds, positions] = found
        return found


class GatherLoader:
    """Gathers the rows of one minibatch at a time, from memory or from mapped chunks, and puts it on a device."""

    def __init__(
        self, split: TaskSplit, layers: Sequence[int], order: Sampler, batch_size: int, device: torch.device = CPU
    ) -> None:
        self.split, self.layers = split, tuple(layers)
        self._order, self._size, self._device = order, batch_size, device

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Every example once, in minibatches, in the order of this epoch."""
        order = self._order.examples(epoch)
        for start in range(0, len(order), self._size):
            yield self.split.batch(order[start : start + self._size], self.layers).on(self._device)


SeedLoader = GatherLoader | StreamingLoader


class SeparateLoaders:
    """A loader for each data seed."""

    def __init__(self, loaders: Mapping[int, SeedLoader]) -> None:
        self._loaders = loaders

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; a seed without any left is not in the step."""
        feeds = {seed: self._loaders[seed].epoch(epoch) for seed in seeds}
        while batches := {seed: batch for seed, feed in feeds.items() if (batch := next(feed, None)) is not None}:
            yield Minibatches(batches)
