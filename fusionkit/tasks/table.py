"""The tasks: one entry for each; an entry names only what differs from classification."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from fusionkit.tasks.label_column import read_label_lists, read_numbers, read_tags
from fusionkit.tasks.task import Targets, Task, class_numbers


def tag_numbers(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """int64 ``[words]``."""
    return class_numbers(list(chain.from_iterable(gold)), number)


def distinct_number(number: float) -> Iterable[str]:
    """The text by which numbers are compared; a task needs at least two different numbers to learn."""
    return (repr(number),) if math.isfinite(number) else ()


def numbers(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """float32 ``[examples]``."""
    return np.array(gold, dtype=np.float32)


def class_marks(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """float32 ``[examples, classes]``, 1 where an example has a class; labels without a number are left out."""
    marks = np.zeros((len(gold), len(number)), dtype=np.float32)
    for example, labels in enumerate(gold):
        marks[example, [number[label] for label in labels if label in number]] = 1
    return marks


KINDS = (
    # One label an example: intent, sentiment, topic.
    Task("classification", "example"),
    # One label a pair of texts: paraphrase, entailment.
    Task("pair-classification", "example", needs_pair=True),
    # One tag a word, read off the word's row: entities, slots, parts of speech.
    Task("tagging", "word", read=read_tags, classes=iter, targets=tag_numbers),
    # One number an example or a pair of texts: similarity, rating.
    Task("regression", "example", numeric=True, read=read_numbers, classes=distinct_number, targets=numbers),
    # Any number of labels per example, each decided by itself, with one threshold for all.
    Task("multi-label", "example", several=True, read=read_label_lists, classes=iter, targets=class_marks),
    # The sub-token behind each mask, predicted from the fused state at its position.
    Task("mlm", "row"),
)
TASKS = {task.name: task for task in KINDS}
