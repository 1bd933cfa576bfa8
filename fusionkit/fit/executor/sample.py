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


def sample_of(data: TaskData, learned: int) -> TaskData:
    """The data with ``learned`` examples of train."""
    return replace(data, train=some(data.train, learned))


def scored_part(data: TaskData, share: float, least: int = 1) -> TaskData:
    """The data with this share of the examples of validation and of each test, or ``least`` of them."""

    def part(split: TaskSplit) -> TaskSplit:
        return some(split, max(round(share * size_of(split)), least)) if size_of(split) else split

    return replace(
        data,
        validation=part(data.validation),
        test=None if data.test is None else part(data.test),
        tests={name: part(test) for name, test in data.tests.items()},
        # Watched examples are drawn from each task's own split.
        others={name: scored_part(other, share, least) if data.apart else other for name, other in data.others.items()},
    )


def size_of(split: TaskSplit) -> int:
    """The number of examples, of all tasks where a split has several."""
    return sum(map(len, split.streams))


def some(split: TaskSplit, count: int) -> TaskSplit:
    """``count`` examples drawn uniformly, so that their mean length is kept; of several tasks in proportion."""
    if split.apart:
        share = count / size_of(split)
        return tasks_joined(
            {name: some(part, max(round(share * len(part)), 1)) for name, part in split.parts.items()}, apart=True
        )
    return split.subset(np.sort(np.random.default_rng(0).permutation(len(split))[:count]))


def epoch_times(
    context: SweepContext,
    specs: Sequence[RunSpec],
    sample: TaskData,
    clock: Callable[[], float],
    most_held: int | None = None,
) -> tuple[list[float], float]:
    """Train runs on a sample; ``most_held`` as in :func:`~fusionkit.fit.train.loop.train_unit`.

    Returns:
        the clock at the start, then at each end of an epoch of a run; and the seconds after the last of them.
    """
    times = [clock()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores of a handful of examples are often undefined
        for _ in context.train(specs, lambda _: times.append(clock()), sample, most_held=most_held):
            pass
    return times, clock() - times[-1]
