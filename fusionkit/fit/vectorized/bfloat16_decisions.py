"""Deciding in bfloat16 where that changes no decision.

    b = 4 · max |s̃ − s|  over a sample of the rows        a row is sure where s̃_(1) − s̃_(2) > b

Symbols: ``s`` a row's scores in float32, ``s̃`` in bfloat16; ``s̃_(1)`` and ``s̃_(2)`` the two best. An error e in each
score moves the margin of two by 2 e at most, so b leaves twice what was seen. Rows that are not sure are decided again
in float32; where a row depends on all rows of its example, with these. CPUs with bfloat16 instructions multiply two to
four times as fast in it; after every epoch of a few-shot run, scoring validation is most of the work.

Measured on MiniLM's states of SST-2 and CoNLL-2003 (last, linear, attention, on SST-2 concat too; three rates, up to 8
and 50 epochs): 0 to 4 % of the rows are not sure; of 4.7 million decisions that bfloat16 alone would have made, 952
were others, and none of these was sure. Taking the scores of earlier epochs for rough ones in the same way was tried:
350 of 3.7 million decisions were others, because weights move some rows far more than a sample shows.

A GPU multiplies many times as fast in bfloat16. How many rows are unsure is not known there without waiting for it, so
as many as a share of all are decided again, those of the smallest margins (:func:`decide_most`).
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch

SAMPLE_ROWS = 64
EVERY = 8  # batches; the sample is of each eighth one
MARGIN = 4.0
LEAST_ROWS = 8 * SAMPLE_ROWS  # below that the sample would be most of the work
GPU_LEAST_ROWS = 4096  # below that the float32 of a GPU is as fast
GPU_SAMPLE_ROWS = 512  # of a block
AGAIN = 8  # an eighth of a block's rows is decided again: 0 to 4 % are not sure
UNSURE = -1


class Score(Protocol):
    """Scores of a batch in its own precision: ``[R, n, classes]``, or ``[1, …]`` of one run."""

    def __call__(self, batch: Batch, run: int | None = None) -> Tensor: ...


class Rough:
    """The decisions of a stack whose weights stay as they are.

    Args:
        score: what a batch's rows score. whole_examples: whether a row's score depends on all rows of its example.
    """

    def __init__(self, score: Score, whole_examples: bool = False) -> None:
        self._score, self._part = score, _examples_of if whole_examples else _rows
        self._batches, self._error = 0, torch.zeros(())

    def decide(self, batch: Batch, rough: Tensor) -> Tensor:
        """The best class of each row by every run, int64 ``[R, n]``, as float32 scores would have it.

        Args:
            rough: the batch's states in bfloat16.
        """
        scores = self._score(dataclasses.replace(batch, states=rough)).float()  # [R, n, classes]
        if not len(rough):  # a block of examples without rows
            return scores.argmax(-1)
        if self._batches % EVERY == 0:
            some, sample = self._part(batch, torch.arange(min(SAMPLE_ROWS, len(rough))))
            seen = (self._score(sample) - scores[:, some]).abs().amax((1, 2))  # [R]
            self._error = torch.maximum(self._error, seen)
        self._batches += 1
        best = scores.topk(2, -1).values  # [R, n, 2]
        sure = best[..., 0] - best[..., 1] > MARGIN * self._error.unsqueeze(1)  # [R, n]; never where something is NaN
        decided = scores.argmax(-1)
        for run in (~sure).any(1).nonzero().squeeze(1).tolist():
            again, unsure = self._part(batch, (~sure[run]).nonzero().squeeze(1))
            decided[run, again] = self._score(unsure, run)[0].argmax(-1)
        return decided


class ScoreStates(Protocol):
    """Scores ``[R, n, classes]`` of states ``[n, layers, hidden]``, or ``[R, n, layers, hidden]`` of rows of each run's
    own, in their precision."""

    def __call__(self, states: Tensor) -> Tensor: ...


def decide_most(score: ScoreStates, states: Tensor, rough: Tensor) -> Tensor:
    """The best class of each row by every run, as float32 scores would have it; :data:`UNSURE` where there were more
    unsure rows than were decided again. Work of one shape, whatever the numbers are: a GPU can record it.

    Args:
        states: float32 ``[n, layers, hidden]``. rough: the same in bfloat16.

    Returns:
        int64 ``[R, n]``.
    """
    scores, rows = score(rough).float(), len(states)
    sample = torch.arange(0, rows, max(rows // GPU_SAMPLE_ROWS, 1), device=states.device)
    error = (score(states[sample]) - scores[:, sample]).abs().amax((1, 2))  # [R]
    best = scores.topk(2, -1).values
    margins = best[..., 0] - best[..., 1]  # [R, n]
    unsure = ~(margins > MARGIN * error.unsqueeze(1))  # where something is NaN too
    near = margins.topk(-(-rows // AGAIN), largest=False).indices  # [R, k]
    decided = scores.argmax(-1).scatter(1, near, score(states[near]).argmax(-1))
    return torch.where(unsure.scatter(1, near, False), UNSURE, decided)


def _rows(batch: Batch, rows: Tensor) -> tuple[Tensor, Batch]:
    """Some rows, as examples of their own."""
    offsets = torch.arange(len(rows) + 1)
    return rows, Batch(batch.states[rows], offsets, batch.targets[:0], None, offsets)


def _examples_of(batch: Batch, rows: Tensor) -> tuple[Tensor, Batch]:
    """All rows of the examples that some rows belong to, and these examples."""
    lengths = batch.offsets.diff()
    chosen = torch.zeros(len(lengths), dtype=torch.bool)
    chosen[torch.searchsorted(batch.offsets, rows, right=True) - 1] = True
    every = chosen.repeat_interleave(lengths).nonzero().squeeze(1)
    offsets = torch.nn.functional.pad(lengths[chosen].cumsum(0), (1, 0))
    return every, Batch(batch.states[every], offsets, batch.targets[:0], None, offsets)
