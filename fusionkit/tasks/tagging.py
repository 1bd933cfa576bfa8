"""Token tagging: one tag a word (entities, slots, parts of speech), read off the word's row."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from fusionkit.heads.table import heads_of
from fusionkit.metrics import tag_scores
from fusionkit.tasks.label_column import read_tags
from fusionkit.tasks.task import Targets, Task, class_numbers


def tag_numbers(gold: list[Any], number: Mapping[str, int]) -> Targets:
    """int64 ``[words]``."""
    return class_numbers(list(chain.from_iterable(gold)), number)


TAGGING = Task(
    "tagging", "word", heads_of("tagging"), needs_pair=False, scores=tag_scores,
    read=read_tags, classes=iter, targets=tag_numbers,
)  # fmt: skip
