"""Score by how many epochs a head was given (figures 2 to 9 of ElNokrashy et al. 2024 have a panel for each)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import ALL, times_of, unit_of
from fusionkit.report.figures.encodings import interval, means, panels
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.summary import scores_of


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a task, size of draw, method and number of epochs, of tasks with two numbers or more."""
    runs = study.chosen_within([*CELL, "epochs"])
    numbers = runs.groupby(["task_name", "shots_name"])["epochs"].transform("nunique")
    rows = []
    for (task, shots, method, epochs), group in runs[numbers > 1].groupby([*CELL, "epochs"], sort=False):
        metric = study.metric(str(task))
        mean, low, high = interval(pd.Series(scores_of(group)) * times_of(metric))
        draw = "" if shots == ALL else f" · {shots} a class"
        rows.append({
            "task": f"{task}{draw} ({unit_of(metric)})", "shots": shots, "method": method, "epochs": int(str(epochs)),
            "score": mean, "low": low, "high": high, "runs": len(group),
        })  # fmt: skip
    return pd.DataFrame(rows) if rows else None


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """A line a method, its interval as a bar at each number of epochs."""
    alt = altair()
    x = alt.X("epochs:O", title="epochs", axis=alt.Axis(labelAngle=0))
    order = data.assign(place=data["shots"].map(study.shots.index)).sort_values("place", kind="stable")["task"]
    return panels(means(x, data, epochs="epochs"), data, "task", list(dict.fromkeys(order)))
