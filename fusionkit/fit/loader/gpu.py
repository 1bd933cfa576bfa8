"""Minibatches on a GPU, gathered from states in its memory into buffers that are used for every step.

A recorded step (:mod:`fusionkit.fit.vectorized.cuda_graphs`) reads the same buffers each time it is replayed.
Minibatches of words are padded to a few sizes, so that few steps are recorded and data seeds can share a stack. Rows
that the head does not read have no target, like padding, so that shapes do not depend on which rows it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.batch import FILLING, Batch, SharedBuffer
from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.loader.minibatches import InMemoryStates, Minibatches
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.ragged import IntArray, flat_rows

FEWEST_ROWS = 16


def padded_rows(rows: int) -> int:
    """The padded number of rows: the next power of two, or one and a half times a power of two."""
    size = FEWEST_ROWS
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


class BatchShape(NamedTuple):
    """The shape of a step's minibatches: their examples, their rows with padding, and an upper bound of the rows of an
    example, None where fusions do not read whole examples.
    """

    examples: int
    rows: int
    longest: int | None


class EpochPlan(NamedTuple):
    """The minibatches of an epoch, on the device.

    Attributes:
        shapes: of each step's minibatches.
        places: int64 ``[steps, seeds, most rows]``, the places of the rows in memory; padding repeats the first row.
        targets: ``[steps, seeds, most rows]``, with a last axis of classes where a row may have several; padding is
            :data:`~fusionkit.dataset.batch.FILLING`.
        offsets: int64 ``[steps, seeds, most examples + 1]``, of each minibatch's own examples.
    """

    shapes: list[BatchShape]
    places: Tensor
    targets: Tensor
    offsets: Tensor


class OrderedDraw(NamedTuple):
    """The examples of one data seed in the order of an epoch.

    Attributes:
        places: int64 ``[rows]``, the places of their rows in memory. offsets: int64 ``[examples + 1]``.
        targets: ``[examples]`` where an example's rows are pooled, else ``[rows]``; a last axis as in
            :class:`EpochPlan`.
    """

    places: IntArray
    targets: NDArray[Any]
    offsets: IntArray


class GpuLoader:
    """Makes the minibatches of all data seeds with one gather per step.

    All draws are in the device's memory and have equally many examples. Each example has one sequence.

    Args:
        pooled: an example's rows are pooled: there is one target per example, not per row. whole: fusions read whole
            examples, so that minibatches have the length of the longest. Others do without it: more shapes would be
            recorded.
    """

    def __init__(
        self,
        draws: Mapping[int, TaskSplit],
        orders: Mapping[int, Sampler],
        batch_size: int,
        device: torch.device,
        pooled: bool = False,
        whole: bool = False,
    ) -> None:
        self._draws, self._orders, self._size, self._device = draws, orders, batch_size, device
        self._pooled, self._whole = pooled, whole
        one = next(iter(draws.values()))
        assert isinstance(one.states, InMemoryStates)
        self._held, self._kind = one.states, torch.from_numpy(one.targets[:0]).dtype
        self._several = one.targets.shape[1:]  # a target's shape: (classes,) where a row may have several, else ()
        self._dense = all(draw.is_dense for draw in draws.values())
        self._buffers: dict[BatchShape, tuple[Tensor, Tensor, Tensor, Minibatches]] = {}
        self._seeds: tuple[int, ...] = ()

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; the next step overwrites a step's minibatches."""
        if self._seeds != tuple(seeds):
            self._seeds = tuple(seeds)
            self._buffers = {}
        plan = self._plan(epoch)
        for step, shape in enumerate(plan.shapes):
            if shape not in self._buffers:
                self._buffers[shape] = self._allocated(*shape)
            states, targets, offsets, batches = self._buffers[shape]
            self._held.select(plan.places[step, :, : shape.rows].flatten(), states.flatten(0, 1))
            targets.copy_(plan.targets[step, :, : targets.shape[1]])
            offsets.copy_(plan.offsets[step, :, : shape.examples + 1])
            yield batches

    def _allocated(self, examples: int, rows: int, longest: int | None) -> tuple[Tensor, Tensor, Tensor, Minibatches]:
        """Buffers for minibatches of one shape, and the views of each seed.

        Returns:
            states ``[seeds, rows, layers, hidden]``; targets ``[seeds, rows]``, or ``[seeds, examples]`` where rows are
            pooled, with a last axis as in :class:`EpochPlan`; offsets ``[seeds, examples + 1]``; the views.
        """
        count, (_, layers, hidden) = len(self._seeds), self._held.shape
        states = torch.empty(count, rows, layers, hidden, device=self._device)
        units = examples if self._pooled else rows
        targets = torch.empty(count, units, *self._several, dtype=self._kind, device=self._device)
        offsets = torch.zeros(count, examples + 1, dtype=torch.int64, device=self._device)
        place = SharedBuffer()
        batches = {
            seed: Batch(states[k], offsets[k], targets[k], None, offsets[k], place=place, longest=longest)
            for k, seed in enumerate(self._seeds)
        }
        return states, targets, offsets, Minibatches(batches)

    def _ordered(self, seed: int, epoch: int) -> OrderedDraw:
        draw, order = self._draws[seed], self._orders[seed].examples(epoch)
        at, offsets = flat_rows(draw.offsets, order)
        read_at = at if draw.read is None else flat_rows(draw.read_offsets, order)[0]
        targets = draw.targets[read_at if draw.kept is not None else order]
        if draw.read is not None and not self._pooled:
            padded = np.full((len(at), *self._several), FILLING, dtype=targets.dtype)
            padded[draw.read[at]] = targets
            targets = padded
        return OrderedDraw(draw.rows[at], targets, offsets)

    def _plan(self, epoch: int) -> EpochPlan:
        draws = [self._ordered(seed, epoch) for seed in self._seeds]
        count = len(draws[0].offsets) - 1  # examples of each draw
        bounds = np.append(np.arange(0, count, self._size), count)  # [steps + 1], of the minibatches' examples
        examples = np.diff(bounds)  # [steps]
        rows = np.max([np.diff(draw.offsets[bounds]) for draw in draws], 0)  # [steps], of the seed with the most
        if not self._dense:
            rows = np.array([padded_rows(each) for each in rows])
        longest: list[int | None] = [None] * len(rows)
        if self._whole:
            lengths = np.max([np.diff(draw.offsets) for draw in draws], 0)  # [examples]
            longest = [padded_rows(each) for each in np.maximum.reduceat(lengths, bounds[:-1])]
        shape = len(rows), len(draws), int(rows.max())
        places = np.zeros(shape, dtype=np.int64)
        targets = np.full((*shape, *self._several), FILLING, dtype=draws[0].targets.dtype)
        offsets = np.zeros((*shape[:2], int(examples.max()) + 1), dtype=np.int64)
        for k, draw in enumerate(draws):
            for step, (first, last) in enumerate(pairwise(bounds)):
                own = draw.offsets[first : last + 1]
                of_rows = slice(own[0], own[-1])
                of_units = slice(first, last) if self._pooled else of_rows
                places[step, k, : own[-1] - own[0]] = draw.places[of_rows]
                targets[step, k, : of_units.stop - of_units.start] = draw.targets[of_units]
                offsets[step, k, : len(own)] = own - own[0]
        shapes = [BatchShape(*each) for each in zip(examples.tolist(), rows.tolist(), longest, strict=True)]
        return EpochPlan(shapes, *(torch.from_numpy(each).to(self._device) for each in (places, targets, offsets)))


class GpuLoaders:
    """A :class:`GpuLoader` for each data seed, which pads minibatches by the seed's own draw alone."""

    def __init__(self, loaders: Mapping[int, GpuLoader]) -> None:
        self._loaders = loaders

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; the next step overwrites a step's minibatches."""
        for steps in zip(*(self._loaders[seed].epoch(epoch, (seed,)) for seed in seeds), strict=True):
            yield Minibatches({seed: batch for step in steps for seed, batch in step.batches.items()})
