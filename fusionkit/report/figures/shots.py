"""Few-shot curves: score by labelled examples a class."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import times_of, unit_of
from fusionkit.report.figures.encodings import interval, means, panels
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.summary import scores_of


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a task, size of draw and method, of tasks with two sizes or more."""
    runs = study.chosen
    sizes = runs.groupby("task_name")["shots_name"].transform("nunique")
    rows = []
    for (task, shots, method), group in runs[sizes > 1].groupby(CELL, sort=False):
        metric = study.metric(str(task))
        mean, low, high = interval(pd.Series(scores_of(group)) * times_of(metric))
        rows.append({
            "task": f"{task} ({unit_of(metric)})", "shots": shots, "method": method, "score": mean, "low": low,
            "high": high, "runs": len(group),
        })  # fmt: skip
    return pd.DataFrame(rows) if rows else None


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """A line a method, its interval as a bar at each size."""
    alt = altair()
    sizes = [size for size in study.shots if size in set(data["shots"])]
    x = alt.X("shots:N", title="labelled examples a class", sort=sizes, axis=alt.Axis(labelAngle=0))
    return panels(means(x, data, shots="shots"), data, "task", list(dict.fromkeys(data["task"])))
