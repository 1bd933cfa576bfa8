"""Scoring after every epoch, by the task's own metric alone: all runs of a unit decide each block of a split together.

A block of rows is read and converted once for all runs. The own metric is computed on class numbers, for all runs of a
stack at once, on the device of the decisions. It equals the first score of the answers that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.loader.minibatches import Layers, layers_of, layers_of_batch
from fusionkit.fit.model.precision import full_float32
from fusionkit.fit.train.decisions import Decisions, ScoreBlock, named
from fusionkit.fit.train.f1 import Spans, best_threshold
from fusionkit.fit.train.stopwatch import Runs, Stopwatch
from fusionkit.fit.vectorized.bfloat16_decisions import decider_of
from fusionkit.fit.vectorized.stack import Stack
from fusionkit.machine.devices import CPU
from fusionkit.ragged import IntArray
from fusionkit.statistics.kept_answers import (
    CLASS,
    TAGS,
    KeptAnswers,
    RunAnswers,
    answers_of,
    ordered_classes,
    positive_of,
    small,
    span_answers,
)
from fusionkit.tags import are_span_tags

COUNTED = 1 << 23  # words whose spans are counted at once, at about 20 bytes each


class StackedRuns(NamedTuple):
    """Runs that are scored together: their stack, the positions of its layers among those that are read, and the runs.

    The stack's time is charged to ``runs``, which are in its order.
    """

    stack: Stack
    places: Layers
    runs: Runs


def decide_all(
    stacks: Sequence[StackedRuns], split: TaskSplit, blocks: Iterable[ScoreBlock], watch: Stopwatch
) -> list[Decisions]:
    """The decision of every run on every unit of a split: ``[R, units, …]`` per stack, on its device."""
    kind = torch.float32 if split.targets.dtype == np.float32 else torch.int64
    device, shape = stacks[0].stack.device, split.targets.shape  # [units, …]
    with torch.inference_mode(), full_float32(device):
        found = [torch.empty(len(each.runs), *shape, dtype=kind, device=device) for each in stacks]
        deciders = [decider_of(each.stack, shape[0], split.read is None) for each in stacks]
        for at, whole, narrow in blocks:
            for (stack, places, runs), decide, decided in zip(stacks, deciders, found, strict=True):
                with watch.of(runs):
                    batch = layers_of_batch(whole, places)
                    if narrow is None or decide is None:
                        decided[:, at] = stack.decide(batch, shape[0])
                    else:
                        decided[:, at] = decide(batch, layers_of(narrow, places))
    return found


class Evaluator:
    """Scores decisions on one split, which lie on ``device``; ``metric`` is the name of the task's own metric."""

    def __init__(self, data: TaskData, split: TaskSplit, device: torch.device = CPU) -> None:
        self._data, self._split = data, split
        self._spans: Spans | None = None
        self.metric = "pearson" if data.task.numeric else "micro_f1" if data.task.several else "accuracy"
        self._counts_classes = self.metric == "accuracy"  # a unit is decided by one class number
        if not self._counts_classes:
            return
        gold = [one for each in split.gold for one in data.task.classes(each)]
        number = {name: k for k, name in enumerate(dict.fromkeys([*data.labels, *gold, data.default]))}
        self._names = list(number)
        numbers = np.array([number[name] for name in gold], dtype=np.int64)
        self._gold, self._default = torch.from_numpy(numbers).to(device), number[data.default]
        self._kept = None if split.kept is None else torch.from_numpy(split.kept.nonzero()[0]).to(device)
        if data.task.unit == "word" and are_span_tags(data.labels) and split.word_offsets is not None:
            self.metric = "f1"
            self._spans = Spans(list(number), split.word_offsets, numbers, device)

    @staticmethod
    def can(data: TaskData) -> bool:
        """False for runs of several tasks, which decide several kinds of units, for masked sub-tokens, and for codes,
        which are no decisions.
        """
        return not data.others and data.lm_head is None and data.coding is None

    def own(self, decided: Decisions) -> list[float]:
        """Each run's own metric, from decisions ``[R, units, …]``; with several labels, at the best threshold here."""
        if self._data.task.several:
            return [best_threshold(self._split.targets, self._split.gold, likely)[1] for likely in decided]
        if self._data.task.numeric:
            return [scores[self.metric] for scores in self.scores(decided)]
        every = self._every(decided)
        if self._spans is None:
            return self._hits(every)
        return [value for some in self._parts(every) for value in self._spans.f1(some).tolist()]

    def scores(self, decided: Decisions, thresholds: Sequence[float | None] = ()) -> list[dict[str, float]]:
        """All of the task's scores for each run, its own metric first; ``thresholds``: one per run, None for none."""
        return [each.scores() for each in self.kept(decided, thresholds)]

    def kept(self, decided: Decisions, thresholds: Sequence[float | None] = ()) -> list[RunAnswers]:
        """What is kept of each run's answers; arguments as of :meth:`scores`."""
        data, split = self._data, self._split
        if not self._counts_classes:
            found = [
                answers_of(data.task, split.gold, named(data, split, run, threshold), data.labels)
                for run, threshold in zip(decided, thresholds or [None] * len(decided), strict=True)
            ]
        elif self._spans is None:
            told, order = self._gold_answers
            found = [
                replace(told, arrays={**told.arrays, "found": small(order[run])})
                for run in self._every(decided).cpu().numpy()
            ]
        else:
            parts = self._parts(self._every(decided))
            found = [each for some in parts for each in self._span_answers(self._spans, some)]
        return [RunAnswers({data.name: each}) for each in found]

    @cached_property
    def _gold_answers(self) -> tuple[KeptAnswers, IntArray]:
        """The gold answers, to which those of each run are added; each class's number in them, int64 ``[classes]``."""
        gold, offsets = self._gold.cpu().numpy(), self._split.word_offsets
        classes = ordered_classes((self._names[k] for k in np.unique(gold)), self._names)
        place = {name: number for number, name in enumerate(classes)}
        order = np.array([place[name] for name in self._names], dtype=np.int64)
        arrays: dict[str, NDArray[Any]] = {"told": small(order[gold])}
        if offsets is not None:
            arrays["words"] = small(np.diff(offsets))
        return KeptAnswers(CLASS if offsets is None else TAGS, arrays, classes, positive_of(self._data.labels)), order

    def _span_answers(self, spans: Spans, every: Tensor) -> list[KeptAnswers]:
        assert self._split.word_offsets is not None
        right, found, told = (each.cpu().numpy() for each in spans.by_sentence(every))
        hits = spans.per_sentence(every == self._gold).cpu().numpy()
        words = np.diff(self._split.word_offsets)
        return [span_answers(one, other, told, hit, words) for one, other, hit in zip(right, found, hits, strict=True)]

    def _parts(self, every: Tensor) -> Sequence[Tensor]:
        """The runs in groups whose counts fit into memory."""
        runs = max(COUNTED // max(every.shape[1], 1), 1)
        return [every[at : at + runs] for at in range(0, len(every), runs)]

    def _every(self, decided: Decisions) -> Tensor:
        """The decisions on all words; words without a row have the default tag."""
        if self._kept is None:
            return decided
        every = decided.new_full((len(decided), len(self._gold)), self._default)
        every[:, self._kept] = decided
        return every

    def _hits(self, every: Tensor) -> list[float]:
        """Each run's share of the units that are right."""
        # Counted on the device, divided on the host: a GPU multiplies by the reciprocal, which rounds differently.
        return [hits / max(len(self._gold), 1) for hits in (every == self._gold).sum(-1).tolist()]
