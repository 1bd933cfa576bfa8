"""Which task each step trains, where each of several tasks has its own examples.

    p_i ∝ N_i^α     proportional α = 1, square-root ½, uniform 0, temperature:T 1/T
                    annealed α = 1 − 0.8 (e − 1)/(E − 1), in epoch e of E; 1 where E = 1
    round-robin     one task after the other

Symbols: ``p_i`` the probability that a step trains task i, ``N_i`` the training examples of task i. The tasks of an
epoch's steps are drawn independently; the draws depend on ``data_seed`` and the epoch alone. A task's minibatches come
as in a run of that task alone: one of its epochs after another, whatever the other tasks do.
Source: Stickland and Murray (2019), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusionkit.fit.train.schedule import Length
from fusionkit.ragged import IntArray

TASK_STREAM = 13  # a stream of data_seed
ALPHAS = {"proportional": 1.0, "square-root": 0.5, "uniform": 0.0}
ROUND_ROBIN, TEMPERATURE = "round-robin", "temperature:"


def task_probabilities(sampling: str, sizes: Sequence[int], epoch: int, epochs: int) -> NDArray[np.float64]:
    """``p``, float64 ``[tasks]``, in an epoch from 1; all equal for round-robin.

    Args:
        sampling: as a run's spec has it. sizes: the tasks' training examples.
    """
    if sampling.startswith(TEMPERATURE):
        alpha = 1 / float(sampling.removeprefix(TEMPERATURE))
    elif sampling == "annealed":
        alpha = 1 - 0.8 * (epoch - 1) / (epochs - 1) if epochs > 1 else 1.0
    else:
        alpha = ALPHAS.get(sampling, 0.0)
    weights = (np.array(sizes, dtype=np.float64) / max(sizes)) ** alpha
    return np.asarray(weights / weights.sum())


class TaskSampler:
    """The task of each step of a run, and the number of its minibatch among those of the task.

    Args:
        sizes: the tasks' training examples. length: that of the run.
    """

    def __init__(self, sampling: str, sizes: Sequence[int], length: Length, data_seed: int) -> None:
        self._count, self._epoch = len(sizes), length.epoch
        tasks = [np.zeros(0, dtype=np.int64)]
        for epoch in range(1, length.epochs + 1):
            steps = min(length.steps - (epoch - 1) * length.epoch, length.epoch)
            if sampling == ROUND_ROBIN or self._count == 1:
                tasks.append(((epoch - 1) * length.epoch + np.arange(steps)) % self._count)
            else:
                rng = np.random.default_rng([data_seed, TASK_STREAM, epoch])
                tasks.append(
                    rng.choice(self._count, steps, p=task_probabilities(sampling, sizes, epoch, length.epochs))
                )
        self._tasks: IntArray = np.concatenate(tasks)
        self._numbers = np.zeros(len(self._tasks), dtype=np.int64)
        for task in range(self._count):
            mine = np.flatnonzero(self._tasks == task)
            self._numbers[mine] = np.arange(len(mine))

    def minibatch(self, step: int) -> tuple[int, int]:
        """The task of a step, and the number of its minibatch, both from 0."""
        return int(self._tasks[step]), int(self._numbers[step])

    def counts(self, epochs: int) -> list[list[int]]:
        """The steps of each task in each of the first epochs."""
        ends = range(0, epochs * self._epoch, self._epoch)
        each = [np.bincount(self._tasks[at : at + self._epoch], minlength=self._count) for at in ends]
        return [[int(count[task]) for count in each] for task in range(self._count)]
