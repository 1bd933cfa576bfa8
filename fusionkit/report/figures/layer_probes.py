"""The probe of each single layer: what ``layer:k`` reaches, beside the fusions over all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import family, times_of, unit_of
from fusionkit.report.figures.encodings import dash, hue, interval, methods_of, panels, spread, tooltip
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import ReportData
from fusionkit.runs.summary import scores_of

ONE = "layer"  # the method that the line of probes is drawn as


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a task and probed layer; and one a fusion over several layers, its ``layer`` empty."""
    runs = study.whole
    read = runs["digest"].map(lambda digest: study.records[digest]["layers"])
    single = runs["fusion"].map(family) == ONE
    layer = [float(one[0]) if is_one else np.nan for one, is_one in zip(read, single, strict=True)]
    probed = runs.assign(layer=layer)
    rows = []
    for task, group in probed.groupby("task_name", sort=False):
        probes, others = group[group["layer"].notna()], group[group["layer"].isna()]
        if probes["layer"].nunique() < 2:
            continue
        metric = study.metric(str(task))
        parts: list[tuple[str, float, pd.DataFrame]] = []
        for number, each in probes.groupby("layer"):
            parts.append((ONE, float(str(number)), each))
        for name, each in others.groupby("method"):
            parts.append((str(name), np.nan, each))
        for method, layer_read, found in parts:
            mean, low, high = interval(pd.Series(scores_of(found)) * times_of(metric))
            rows.append({
                "task": f"{task} ({unit_of(metric)})", "method": method, "layer": layer_read, "score": mean, "low": low,
                "high": high, "runs": len(found),
            })  # fmt: skip
    return pd.DataFrame(rows) if rows else None


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """The probes as a line, the others as level lines."""
    alt = altair()
    methods = methods_of(data)
    base = alt.Chart().encode(color=hue(methods))
    y = alt.Y("score:Q", title=None, scale=alt.Scale(zero=False))
    x = alt.X("layer:Q", title="the one layer that is read", axis=alt.Axis(tickMinStep=1, format="d"))
    told = tooltip(method="method", layer="layer", score__s="mean", low__s="from", high__s="to", runs="runs")
    probes = base.transform_filter("isValid(datum.layer)")
    levels = base.transform_filter("!isValid(datum.layer)").mark_rule(strokeWidth=1.4).encode(
        y=y, strokeDash=dash(methods), tooltip=told
    )  # fmt: skip
    band = spread(probes.mark_area(opacity=0.15).encode(x=x))
    line = probes.mark_line(strokeWidth=2).encode(x=x, y=y)
    points = probes.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, tooltip=told)
    return panels(alt.layer(levels, band, line, points), data, "task", list(dict.fromkeys(data["task"])))
