"""Multi-label classification: any number of labels an example, each decided alone by one threshold for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusionkit.heads.table import heads_of
from fusionkit.metrics import label_set_scores
from fusionkit.tasks.label_column import read_label_lists
from fusionkit.tasks.task import Targets, Task


def class_marks(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """float32 ``[examples, classes]``, 1 where an example has a class; a class without a number has no column."""
    marks = np.zeros((len(gold), len(number)), dtype=np.float32)
    for example, labels in enumerate(gold):
        marks[example, [number[label] for label in labels if label in number]] = 1
    return marks


MULTI_LABEL = Task(
    "multi-label", "example", heads_of("multi-label"), needs_pair=False, scores=label_set_scores,
    several=True, read=read_label_lists, classes=iter, targets=class_marks,
)  # fmt: skip
