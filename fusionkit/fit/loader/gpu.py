"""Minibatches on a GPU, gathered from states in its memory into buffers that are used for every step.

A recorded step (:mod:`fusionkit.fit.vectorized.cuda_graphs`) reads the same buffers each time it is replayed.
Minibatches of words are padded to a few sizes, so that few steps are recorded and data seeds can share a stack. Rows
that the head does not read have no target, like padding, so that shapes do not depend on which rows it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import FILLING, Batch, SharedBuffer
from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.loader.minibatches import InMemoryStates, Minibatches
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.ragged import flat_rows

FEWEST_ROWS = 16
Shape = tuple[int, int, int | None]  # of a minibatch: examples, padded rows, padded rows of its longest example


def filled(rows: int) -> int:
    """The padded number of rows: the next power of two, or one and a half times a power of two."""
    size = FEWEST_ROWS
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


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
        self._buffers: dict[Shape, tuple[Tensor, Tensor, Tensor, Minibatches]] = {}
        self._seeds: tuple[int, ...] = ()

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; the next step overwrites a step's minibatches."""
        if self._seeds != tuple(seeds):
            self._seeds = tuple(seeds)
            self._buffers = {}
        shapes, places, targets, offsets = self._plan(epoch)
        for step, shape in enumerate(shapes):
            if shape not in self._buffers:
                self._buffers[shape] = self._allocated(*shape)
            examples, rows, _ = shape
            states, own_targets, own_offsets, batches = self._buffers[shape]
            self._held.select(places[step, :, :rows].flatten(), states.flatten(0, 1))
            own_targets.copy_(targets[step, :, : own_targets.shape[1]])
            own_offsets.copy_(offsets[step, :, : examples + 1])
            yield batches

    def _allocated(self, examples: int, rows: int, longest: int | None) -> tuple[Tensor, Tensor, Tensor, Minibatches]:
        """Buffers for minibatches of one shape: states, targets and offsets of all seeds, and the views of each."""
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

    def _plan(self, epoch: int) -> tuple[list[Shape], Tensor, Tensor, Tensor]:
        """The row indices of each minibatch; padding repeats the first row.

        Returns:
            the shape of each step's minibatches; on the device the rows' places ``[steps, seeds, most rows]``, their
            targets, with a last axis of classes where a row may have several, and offsets
            ``[steps, seeds, most examples + 1]``.
        """
        found = []
        for seed in self._seeds:
            draw, order = self._draws[seed], self._orders[seed].examples(epoch)
            at, offsets = flat_rows(draw.offsets, order)
            read_at = at if draw.read is None else flat_rows(draw.read_offsets, order)[0]
            told = draw.targets[read_at if draw.kept is not None else order]
            if draw.read is not None and not self._pooled:
                given = np.full((len(at), *self._several), FILLING, dtype=told.dtype)
                given[draw.read[at]] = told
                told = given
            found.append((draw.rows[at], told, offsets))
        bounds = np.append(np.arange(0, len(order), self._size), len(order))  # of the minibatches' examples
        examples = np.diff(bounds)
        most = np.max([np.diff(offsets[bounds]) for _, _, offsets in found], 0)
        rows = most if self._dense else np.array([filled(count) for count in most])
        longest: list[int | None] = [None] * len(rows)
        if self._whole:
            lengths = np.max([np.diff(offsets) for _, _, offsets in found], 0)
            longest = [filled(count) for count in np.maximum.reduceat(lengths, bounds[:-1])]
        shape = len(examples), len(self._seeds), int(rows.max())
        places = np.zeros(shape, dtype=np.int64)
        targets = np.full((*shape, *self._several), FILLING, dtype=found[0][1].dtype)
        inside = np.zeros((*shape[:2], int(examples.max()) + 1), dtype=np.int64)
        for k, (lies, told, offsets) in enumerate(found):
            for step, (first, last) in enumerate(pairwise(bounds)):
                own = offsets[first : last + 1]
                here = slice(own[0], own[-1])
                places[step, k, : own[-1] - own[0]] = lies[here]
                units = slice(first, last) if self._pooled else here
                targets[step, k, : units.stop - units.start] = told[units]
                inside[step, k, : len(own)] = own - own[0]
        shapes = list(zip(examples.tolist(), rows.tolist(), longest, strict=True))
        sent = [torch.from_numpy(each).to(self._device) for each in (places, targets, inside)]
        return shapes, sent[0], sent[1], sent[2]


class GpuLoaders:
    """A :class:`GpuLoader` for each data seed, which pads minibatches by the seed's own draw alone."""

    def __init__(self, loaders: Mapping[int, GpuLoader]) -> None:
        self._loaders = loaders

    def epoch(self, epoch: int, seeds: Sequence[int]) -> Iterator[Minibatches]:
        """The minibatches of these data seeds, step by step; the next step overwrites a step's minibatches."""
        for steps in zip(*(self._loaders[seed].epoch(epoch, (seed,)) for seed in seeds), strict=True):
            yield Minibatches({seed: batch for step in steps for seed, batch in step.batches.items()})
