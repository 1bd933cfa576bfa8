"""Regression: one number an example or a pair of texts (similarity, rating)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fusionkit.heads.table import heads_of
from fusionkit.metrics import number_scores
from fusionkit.tasks.label_column import read_numbers
from fusionkit.tasks.task import Targets, Task


def distinct_number(number: float) -> Iterable[str]:
    """What tells a number from others: fewer than two different ones cannot be learned."""
    return (f"{number:g}",) if math.isfinite(number) else ()


def numbers(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """float32 ``[examples]``."""
    return np.array(gold, dtype=np.float32)


REGRESSION = Task(
    "regression", "example", heads_of("regression"), needs_pair=False, scores=number_scores,
    numeric=True, read=read_numbers, classes=distinct_number, targets=numbers,
)  # fmt: skip
