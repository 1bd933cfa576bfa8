"""Samples for measuring costs: some of a run's examples, and plain values of options that a sample cannot have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusionkit.dataset.split import TaskSplit, tasks_joined
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.specs import SHUFFLE, RunSpec

LEAST = 8  # validation examples
PLAIN: dict[str, Any] = {
    "max_steps": None, "lr": 1e-4, "shots": None, "draw": "uniform", "draw_ids": None, "validate_on": None,
    "patience": None, "class_weights": "none", "order": SHUFFLE,
}  # fmt: skip


def sample_of(data: TaskData, learned: int, watched: int) -> TaskData:
    """``learned`` examples of train and ``watched`` of validation, without a test split."""
    return replace(
        data, train=some(data.train, learned), validation=some(data.validation, watched), test=None, tests={}
    )


def some(split: TaskSplit, count: int) -> TaskSplit:
    """``count`` examples drawn uniformly, so that their mean length is kept; of several tasks in proportion."""
    if split.apart:
        share = count / sum(map(len, split.streams))
        return tasks_joined(
            {name: some(part, max(round(share * len(part)), 1)) for name, part in split.parts.items()}, apart=True
        )
    return split.subset(np.sort(np.random.default_rng(0).permutation(len(split))[:count]))


def epoch_times(
    context: SweepContext, specs: Sequence[RunSpec], sample: TaskData, clock: Callable[[], float]
) -> list[float]:
    """Train runs on a sample. Returns the clock at the start, then at each end of an epoch of a run."""
    times = [clock()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores of a handful of examples are often undefined
        for _ in context.train(specs, lambda _: times.append(clock()), sample):
            pass
    return times
