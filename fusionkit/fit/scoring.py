"""Scoring after every epoch: all runs of a unit decide each block of a split together, by their own metric alone.

A block of rows is read and converted once for all runs. The own metric is computed on class numbers; it is the same
number as the first of ``Task.scores``, which works on names, gives all of them, and is asked once a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fusionkit.fit.data import TaskData, TaskSplit
from fusionkit.fit.feeding import Layers, layers_of, layers_of_batch
from fusionkit.fit.precision import full_float32, has_bfloat16
from fusionkit.fit.predicting import Decisions, named, read_blocks, units_of
from fusionkit.fit.rough import LEAST_ROWS
from fusionkit.fit.spans import Spans
from fusionkit.fit.stacks import Stack
from fusionkit.tags import are_span_tags


def decide_all(stacks: Sequence[tuple[Stack, Layers]], split: TaskSplit, layers: Layers) -> list[list[Decisions]]:
    """What every run decides of every unit of a split: ``[stack][run]`` → class numbers, or numbers, ``[units]``.

    Args:
        stacks: each with the places of its layers among ``layers``. layers: positions among the stored layers.
    """
    kind = np.float32 if split.targets.dtype == np.float32 else np.int64
    found = [[np.empty(len(split.targets), dtype=kind) for _ in stack.specs] for stack, _ in stacks]
    device = stacks[0][0].device
    with torch.inference_mode(), full_float32(device):
        for examples, batch in read_blocks(split, layers, device):
            at = units_of(split, examples)
            worth = device.type == "cpu" and has_bfloat16() and len(split.targets) >= LEAST_ROWS
            rough = batch.states.bfloat16() if worth else None
            for (stack, chosen), runs in zip(stacks, found, strict=True):
                cast = None if rough is None else layers_of(rough, chosen)
                decided = stack.decide(layers_of_batch(batch, chosen), cast)
                if device.type != "cpu":
                    decided = torch.stack(list(decided)).cpu().unbind()  # all runs' in one copy
                for run, answers in zip(runs, decided, strict=True):
                    run[at] = answers.numpy()
    return found


class Judge:
    """A task's scores of decisions ``[units]`` on one split.

    Attributes:
        metric: the own one's name, as ``Task.scores`` has it first.
    """

    def __init__(self, data: TaskData, split: TaskSplit) -> None:
        self._data, self._split = data, split
        self._spans: Spans | None = None
        self.metric = "pearson" if data.task.numeric else "accuracy"
        if data.task.numeric:
            return
        gold = [tag for tags in split.gold for tag in tags] if data.task.unit == "word" else split.gold
        number = {name: k for k, name in enumerate(dict.fromkeys([*data.labels, *gold, data.default]))}
        self._gold = np.array([number[name] for name in gold], dtype=np.int64)
        self._default = number[data.default]
        if data.task.unit == "word" and are_span_tags(data.labels) and split.word_offsets is not None:
            self.metric = "f1"
            self._spans = Spans(list(number), split.word_offsets, self._gold)

    @staticmethod
    def can(data: TaskData) -> bool:
        """Whether a task's decisions are one number a unit: a joint run's are two, a masked sub-token's a surprise."""
        return data.slots is None and data.lm_head is None

    def own(self, decided: Decisions) -> float:
        """The own metric."""
        if self._data.task.numeric:
            return self.scores(decided)[self.metric]
        if self._split.kept is not None:
            every = np.full(len(self._gold), self._default)
            every[self._split.kept] = decided
            decided = every
        return float(np.mean(decided == self._gold)) if self._spans is None else self._spans.f1(decided)

    def scores(self, decided: Decisions) -> dict[str, float]:
        """All of the task's scores; its own metric comes first."""
        return self._data.task.scores(self._split.gold, named(self._data, self._split, decided), self._data.labels)
