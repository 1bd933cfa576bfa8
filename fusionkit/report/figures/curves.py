"""Curves of training: validation score by epoch and by time, loss by step and by time.

    steps until epoch e  =  e · ⌈examples / batch size⌉

Symbols: examples, those that the run learns from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import times_of, unit_of
from fusionkit.report.figures.encodings import dash, hue, interval, methods_of, panels, spread, tooltip
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import ReportData
from fusionkit.report.train_size import examples_learned
from fusionkit.runs.folder import timed_curve

X_TITLES = {"epoch": "epoch", "seconds": "seconds a head", "step": "steps of the optimizer"}
LOG = ("seconds", "step")
MOST_BANDS = 5  # more of them hide each other


def curves(study: ReportData, x: str, y: str) -> pd.DataFrame | None:
    """A row a task, method and epoch: means over the seeds, with the interval of the score or loss."""
    runs = study.whole.drop_duplicates(["digest", "task_name"])
    rows: list[dict[str, Any]] = []
    for digest, task, method in runs[["digest", "task_name", "method"]].itertuples(index=False):
        record = study.records[digest]
        times = times_of(study.metric(str(task))) if y == "validation_score" else 1.0
        steps = steps_an_epoch(study, record) if x == "step" else None
        for number, point in enumerate(timed_curve(record), start=1):
            at = {**point, "step": None if steps is None else min(steps * number, record.get("steps") or math.inf)}[x]
            value = point.get(y)
            if at is not None and value is not None and math.isfinite(value):
                rows.append({"task": task, "method": method, "epoch": point["epoch"], "x": at, "value": times * value})
    if not rows:
        return None
    found = []
    for (task, method, epoch), group in pd.DataFrame(rows).groupby(["task", "method", "epoch"], sort=False):
        mean, low, high = interval(group["value"])
        name = f"{task} ({unit_of(study.metric(str(task)))})" if y == "validation_score" else task
        found.append({
            "task": name, "method": method, "epoch": epoch, "x": group["x"].mean(), "value": mean,
            "low": low, "high": high, "runs": len(group),
        })  # fmt: skip
    return (
        pd.DataFrame(found).rename(columns={"x": x} if x != "epoch" else {}).drop(columns=["x"] if x == "epoch" else [])
    )


def data(x: str, y: str) -> Callable[[ReportData, AllPredictions], pd.DataFrame | None]:
    """The data of a figure with these axes."""
    return lambda study, looks: curves(study, x, y)


def chart(x: str, y: str) -> Callable[[ReportData, pd.DataFrame], Any]:
    """A line a method within the band of its interval."""

    def made(study: ReportData, data: pd.DataFrame) -> Any:
        alt = altair()
        methods = methods_of(data)
        scale = alt.Scale(type="log", nice=False) if x in LOG else alt.Scale(nice=False, zero=False)
        axis = alt.Axis(tickCount=4, format="~s") if x in LOG else alt.Axis(tickMinStep=1)
        base = alt.Chart().encode(x=alt.X(f"{x}:Q", title=X_TITLES[x], scale=scale, axis=axis), color=hue(methods))
        level = alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
        told = tooltip(method="method", epoch="epoch", **{f"{x}__n": X_TITLES[x]}, value__n="mean", runs="runs")
        line = base.mark_line(strokeWidth=1.8).encode(y=level, strokeDash=dash(methods))
        few = data.groupby("task")["method"].nunique().max() <= MOST_BANDS
        band = spread(base.mark_area(opacity=0.13), "value")
        points = base.mark_point(filled=True, size=12, opacity=1).encode(y=level, tooltip=told)
        return panels(
            alt.layer(*([band] if few else []), line, points),
            data,
            "task",
            list(dict.fromkeys(data["task"])),
            free=("x", "y"),
        )

    return made


def steps_an_epoch(study: ReportData, record: dict[str, Any]) -> int | None:
    """Minibatches of one epoch, or None where nothing tells how many examples the run learned from."""
    examples = examples_learned(study, record)
    return None if examples is None else math.ceil(examples / record["spec"]["batch_size"])
