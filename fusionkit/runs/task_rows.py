"""Rows of a run of several tasks over stores of their own: one for each task, and one for the mean of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fusionkit.metrics import split_score
from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of

MEAN = "mean"


def rows_of_tasks(
    record: Mapping[str, Any], flat: Mapping[str, Any], own: Iterable[str], metric: str | None
) -> list[dict[str, Any]]:
    """One row per task, whose ``task`` is the task's name, and a last row whose ``task`` is ``mean``. A run that has
    not finished has the last row alone.

    Args:
        flat: the whole run's row. own: the name of each task's own score, ``sst2_accuracy``. metric: shown instead, for
            the tasks that have it; there is no row of the mean then, unless it is ``mean``.
    """
    if flat["status"] != "finished":
        return [{**flat, "task": MEAN}]
    scores, rows = record["scores"], list[dict[str, Any]]()
    for (name, part), usual in zip(parts_of(RunSpec.from_dict(record["spec"])).items(), own, strict=True):
        shown = usual if metric in (None, MEAN) else f"{name}_{metric}"
        if (value := scores["validation"].get(shown)) is not None:
            row = {**flat, "task": name, "label": part.label, "head": part.head, "metric": shown}
            row |= {"score": scores.get("test", {}).get(shown), "validation_score": value}
            rows.append({**row, "scored_on": scored_on(row)})
    return rows if metric not in (None, MEAN) else [*rows, {**flat, "task": MEAN, "label": None, "head": None}]


def metrics_of(record: Mapping[str, Any], each_task: bool) -> set[str]:
    """The scores that a table can show of a run. Of tasks over stores of their own each has a row where ``each_task``:
    the names are then without that of the task in front (:func:`rows_of_tasks`).
    """
    names = set(record.get("scores", {}).get("validation", {}))
    if not each_task or not record["spec"].get("task_stores"):
        return names
    tasks = parts_of(RunSpec.from_dict(record["spec"]))
    return {split_score(name, tasks)[1] for name in names}


def weights_of_tasks(record: Mapping[str, Any]) -> dict[str, Any]:
    """The number of parameters that several tasks over one encoder need without their heads, and that number as a
    multiple of the encoder's parameters.
    """
    own, encoder = record.get("parameters_per_task"), record.get("encoder_parameters")
    if own is None or not encoder:
        return {}
    total = encoder + own * len(record["spec"]["task_stores"].split(","))
    return {"total_parameters": total, "encoder_multiple": total / encoder}


def scored_on(flat: Mapping[str, Any]) -> str | None:
    """The split whose score counts: test, or validation where there is no test; None for a run without a score."""
    if flat["status"] != "finished":
        return None
    counts = {"test": flat["score"], "validation": flat["validation_score"]}
    return next((split for split, score in counts.items() if score is not None), None)
