"""Score by cost: trained parameters and seconds a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import times_of, unit_of
from fusionkit.report.figures.encodings import form, hue, interval, methods_of, panels, spread, tooltip
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import ReportData
from fusionkit.runs.summary import scores_of

TITLES = {"parameters": "parameters learned, fusion and head", "seconds": "seconds a head"}


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a task and method of the largest draw: score with its interval, mean parameters and seconds."""
    rows = []
    for (task, method), runs in study.whole.groupby(["task_name", "method"], sort=False):
        metric = study.metric(str(task))
        mean, low, high = interval(pd.Series(scores_of(runs)) * times_of(metric))
        every = (runs["fusion_parameters"] + runs["head_parameters"]).astype(float)
        learned = runs["trained_parameters"].astype(float).fillna(every)
        rows.append({
            "task": f"{task} ({unit_of(metric)})", "method": method, "score": mean, "low": low, "high": high,
            "parameters": learned.mean(), "fusion_parameters": runs["fusion_parameters"].astype(float).mean(),
            "seconds": runs["seconds"].astype(float).mean(), "runs": len(runs),
        })  # fmt: skip
    return pd.DataFrame(rows) if rows else None


def chart(x: str) -> Callable[[ReportData, pd.DataFrame], Any]:
    """A point a method with its interval, the cost on a logarithmic axis."""

    def made(study: ReportData, data: pd.DataFrame) -> Any:
        alt = altair()
        methods = methods_of(data)
        # A frozen LM head under `last` learns nothing, which a logarithm cannot show.
        scale = alt.Scale(type="log", nice=False, padding=12) if (data[x] > 0).all() else alt.Scale(type="symlog")
        axis = alt.Axis(format="~s", tickCount=4)
        base = alt.Chart().encode(x=alt.X(f"{x}:Q", title=TITLES[x], scale=scale, axis=axis), color=hue(methods))
        told = tooltip(
            method="method", score__s="mean", low__s="from", high__s="to",
            parameters__n="parameters", fusion_parameters__n="of the fusion", seconds__n="seconds", runs="runs",
        )  # fmt: skip
        bars = spread(base.mark_rule(strokeWidth=1, opacity=0.55))
        points = base.mark_point(filled=True, size=75, opacity=1).encode(
            y=alt.Y("score:Q", title=None, scale=alt.Scale(zero=False)), shape=form(methods), tooltip=told
        )
        return panels(alt.layer(bars, points), data, "task", list(dict.fromkeys(data["task"])))

    return made
