"""The draw of a run: by its seed and its shots, or the examples that were given back to it by their ids.

Depends on ``draw``, ``shots`` and ``data_seed`` alone: runs that share them see the same examples. And the part of
validation that is scored while training, which is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusionkit.dataset.draws import nested_draw, stratified_draw, uniform_draw, watched_draw
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray
from fusionkit.specs import GIVEN, RunSpec
from fusionkit.tags import are_span_tags
from fusionkit.tasks import tasks_of


def draw_of(spec: RunSpec, data: TaskData) -> IntArray | None:
    """The training examples that a run learns from, ascending; None is all of them.

    Of several tasks the classes of the first one named count.

    Raises:
        UsageError: a draw larger than the training split, one that the task has no classes for, or ids that are not
            given or not in train.
    """
    check_draw(spec)
    train = data.train
    if spec.draw_ids is not None:
        if spec.draw_ids not in data.draws:
            known = ", ".join(data.draws) or "none"
            raise UsageError(f"the draw {spec.draw_ids} is not given", received=known, remedy="add --draw-from")
        return _numbers_of(data.draws[spec.draw_ids], train)
    if spec.shots is None:
        return None
    if spec.draw == "stratified":
        # A class that is known from elsewhere, and that no example of train holds, is refused as all others that lack.
        none = dict.fromkeys(_classes(data), np.zeros(0, dtype=np.int64))
        return stratified_draw(none | train.holders, len(train), spec.shots, spec.data_seed)
    draw = nested_draw if spec.draw == "nested" else uniform_draw
    return draw(len(train), spec.shots, data.classes, spec.data_seed)


def _classes(data: TaskData) -> list[str]:
    """What a stratified draw draws of: labels, or of span tags the entity types."""
    if data.task.unit == "word" and are_span_tags(data.labels):
        return sorted({tag[2:] for tag in data.labels if tag != "O"})
    return data.labels


def check_draw(spec: RunSpec) -> None:
    """Refuse a way of drawing that the run has nothing for.

    Raises:
        UsageError: classes to draw of where the task has none, or a choice where nothing is drawn.
    """
    task = next(iter(tasks_of(spec.task).values()))
    if spec.draw == "stratified" and (task.numeric or task.unit == "row"):
        raise UsageError(
            f"the task {task.name} has no classes to draw the same number of",
            expected="--draw uniform or --draw nested",
            received="--draw stratified",
            remedy="choose another --draw",
        )
    if spec.shots is None and spec.draw not in ("uniform", GIVEN):
        raise UsageError(
            f"--draw {spec.draw} draws nothing: the run learns from all of train",
            expected="--shots N",
            received="none",
            remedy="add --shots, or leave --draw out",
        )


def watched_split(spec: RunSpec, data: TaskData) -> TaskSplit:
    """What chooses the epoch: ``validate_on`` examples of validation, or all of it where there are no more."""
    whole = data.validation
    if spec.validate_on is None or spec.validate_on >= len(whole):
        return whole
    return whole.subset(watched_draw(len(whole), spec.validate_on))


def _numbers_of(ids: Sequence[str], train: TaskSplit) -> IntArray:
    known: dict[str, list[int]] = {one: [] for one in ids}
    for number, one in enumerate(train.ids):
        if one in known:
            known[one].append(number)
    for wrong, what in (
        ([one for one in ids if not known[one]], "are not in train"),
        ([one for one in ids if len(known[one]) > 1], "are those of several training examples"),
    ):
        if wrong:
            raise UsageError(
                f"{len(wrong)} of {len(ids)} ids to draw {what}",
                expected=f"ids of train, like {', '.join(train.ids[:3])}",
                received=", ".join(wrong[:6]) + ("…" if wrong[6:] else ""),
                remedy="give a draw of the same data",
            )
    return np.sort(np.array([numbers[0] for numbers in known.values()], dtype=np.int64))
