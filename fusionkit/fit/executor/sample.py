"""Samples for measuring costs: some of a run's examples, and plain values of options that a sample cannot have."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusionkit.dataset.split import TaskSplit, tasks_joined
from fusionkit.specs import SHUFFLE

LEAST = 8  # validation examples
PLAIN: dict[str, Any] = {
    "max_steps": None, "lr": 1e-4, "shots": None, "draw": "uniform", "draw_ids": None, "validate_on": None,
    "patience": None, "class_weights": "none", "order": SHUFFLE,
}  # fmt: skip


def some(split: TaskSplit, count: int) -> TaskSplit:
    """``count`` examples drawn uniformly, so that their mean length is kept; of several tasks in proportion."""
    if split.apart:
        share = count / sum(map(len, split.streams))
        return tasks_joined(
            {name: some(part, max(round(share * len(part)), 1)) for name, part in split.parts.items()}, apart=True
        )
    return split.subset(np.sort(np.random.default_rng(0).permutation(len(split))[:count]))
