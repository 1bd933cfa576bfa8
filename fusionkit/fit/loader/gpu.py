"""Minibatches on a GPU, gathered from states in its memory into buffers that are used for every step.

A recorded step (:mod:`fusionkit.fit.vectorized.cuda_graphs`) reads the same buffers each time it is replayed.
Minibatches of words differ in their number of rows. They are padded to a few sizes, so that few steps are recorded and
several data seeds can share a stack. The row indices of an epoch are sent to the device once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import FILLING, Batch, SharedBuffer
from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.loader.minibatches import InMemoryStates, Minibatches
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.ragged import flat_rows

FEWEST_ROWS = 16


def filled(rows: int) -> int:
    """The padded number of rows: the next power of two, or one and a half times a power of two."""
    size = FEWEST_ROWS
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@dataclass(frozen=True)
class _Epoch:
    """The plan of an epoch: examples and padded rows of each step, and the content of the buffers for each seed.

    Attributes:
        places: ``[steps, seeds, most rows]``. targets: the same, with ``classes`` behind where a row may have several.
        offsets: ``[steps, seeds, most examples + 1]``.
    """

    shapes: list[tuple[int, int]]
    places: Tensor
    targets: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class _Buffers:
    """Buffers for minibatches of one shape, of all seeds; ``batches`` are views of them."""

    states: Tensor
    targets: Tensor
    offsets: Tensor
    batches: Minibatches


class GpuLoader:
    """Makes the minibatches of all data seeds by one gather a step.

    Args:
        draws: of each data seed, as :func:`~fusionkit.fit.loader.minibatches.load_all_into_memory` loads them: as many
            examples each, with one sequence each, all of whose rows are read. orders: of each. device: that holds them.
    """

    def __init__(
        self, draws: Mapping[int, TaskSplit], orders: Mapping[int, Sampler], batch_size: int, device: torch.device
    ) -> None:
        self._draws, self._orders, self._size, self._device = draws, orders, batch_size, device
        one = next(iter(draws.values()))
        assert isinstance(one.states, InMemoryStates)
        self._held, self._kind = one.states, torch.from_numpy(one.targets[:0]).dtype
        self._several = one.targets.shape[1:]  # as many numbers as there are classes, where a row may have several
        self._dense = all(draw.is_dense for draw in draws.values())
        self._rooms: dict[tuple[int, int], _Buffers] = {}
        self._seeds: tuple[int, ...] = ()

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """As :class:`~fusionkit.fit.loader.minibatches.Loader` says; the next step overwrites a step's minibatches."""
        if self._seeds != tuple(seeds):
            self._seeds = tuple(seeds)
            self._rooms = {}
        plan = self._planned(epoch)
        for step, (examples, rows) in enumerate(plan.shapes):
            if (examples, rows) not in self._rooms:
                self._rooms[examples, rows] = self._room(examples, rows)
            room = self._rooms[examples, rows]
            self._held.select(plan.places[step, :, :rows].flatten(), room.states.flatten(0, 1))
            room.targets.copy_(plan.targets[step, :, :rows])
            room.offsets.copy_(plan.offsets[step, :, : examples + 1])
            yield room.batches

    def _room(self, examples: int, rows: int) -> _Buffers:
        count, (_, layers, hidden) = len(self._seeds), self._held.shape
        states = torch.empty(count, rows, layers, hidden, device=self._device)
        targets = torch.empty(count, rows, *self._several, dtype=self._kind, device=self._device)
        offsets = torch.zeros(count, examples + 1, dtype=torch.int64, device=self._device)
        place = SharedBuffer()
        batches = {
            seed: Batch(states[k], offsets[k], targets[k], None, offsets[k], place=place)
            for k, seed in enumerate(self._seeds)
        }
        return _Buffers(states, targets, offsets, Minibatches(batches, lasting=True))

    def _planned(self, epoch: int) -> _Epoch:
        """The row indices of each minibatch; padding repeats the first row."""
        starts = np.arange(0, len(self._draws[self._seeds[0]]), self._size)
        examples = np.diff(np.append(starts, len(self._draws[self._seeds[0]])))
        found, counts = [], []
        for seed in self._seeds:
            draw, order = self._draws[seed], self._orders[seed].examples(epoch)
            at, offsets = flat_rows(draw.offsets, order)
            bounds = np.append(offsets[starts], len(at))  # of the minibatches' rows
            targets = draw.targets[at] if draw.kept is not None else draw.targets[order]
            found.append((draw.rows[at], targets, offsets, bounds))
            counts.append(np.diff(bounds))
        most = np.max(counts, 0)
        rows = most if self._dense else np.array([filled(count) for count in most])
        shape = len(starts), len(self._seeds), int(rows.max())
        places = np.zeros(shape, dtype=np.int64)
        targets = np.full((*shape, *self._several), FILLING, dtype=found[0][1].dtype)
        inside = np.zeros((*shape[:2], int(examples.max()) + 1), dtype=np.int64)
        for k, (lies, told, offsets, bounds) in enumerate(found):
            step = np.repeat(np.arange(len(starts)), counts[k])
            column = np.arange(len(lies)) - bounds[step]
            places[step, k, column], targets[step, k, column] = lies, told
            for number, first in enumerate(starts):
                own = offsets[first : first + examples[number] + 1]
                inside[number, k, : len(own)] = own - own[0]
        shapes = list(zip(examples.tolist(), rows.tolist(), strict=True))
        sent = (torch.from_numpy(each).to(self._device) for each in (places, targets, inside))
        return _Epoch(shapes, *sent)
