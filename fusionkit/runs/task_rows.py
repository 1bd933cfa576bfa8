"""Rows of a run of several tasks over stores of their own: one for each task, and one for the mean of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of

MEAN = "mean"


def rows_of_tasks(
    record: Mapping[str, Any], flat: Mapping[str, Any], own: Iterable[str], metric: str | None
) -> list[dict[str, Any]]:
    """The rows; of each ``task`` is the name of its task, of the last one ``mean``.

    Args:
        flat: the whole run's row. own: the name of each task's own score, ``sst2_accuracy``. metric: the one that is
            shown instead, of the tasks that have it.
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


def weights_of_tasks(record: Mapping[str, Any]) -> dict[str, Any]:
    """What several tasks over one encoder weigh: all but their heads, also as a multiple of the encoder."""
    own, encoder = record.get("parameters_per_task"), record.get("encoder_parameters")
    if own is None or not encoder:
        return {}
    total = encoder + own * len(record["spec"]["task_stores"].split(","))
    return {"total_parameters": total, "encoder_multiple": total / encoder}


def scored_on(flat: Mapping[str, Any]) -> str | None:
    """The split whose score counts: test, or validation where there is no test; None of a run that has no score."""
    if flat["status"] != "finished":
        return None
    counts = {"test": flat["score"], "validation": flat["validation_score"]}
    return next((split for split, score in counts.items() if score is not None), None)
