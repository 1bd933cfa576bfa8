"""Scores without the parts of a span of layers: a heat map of first and last layer, for each ablated run and task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import panels, shade, tooltip
from fusionkit.report.report_data import ReportData
from fusionkit.runs.ablations import fall_text, read_ablation
from fusionkit.runs.shown_split import VALIDATION

MOST = 12  # maps


def data(study: ReportData) -> pd.DataFrame | None:
    """One row per run, task and span, for the runs that `fusionkit ablate` has scored."""
    rows: list[dict[str, Any]] = []
    for digest, folder in study.frame.drop_duplicates("digest")[["digest", "folder"]].itertuples(index=False):
        if (found := read_ablation(Path(folder) / digest)) is None:
            continue
        for task in found.whole:
            split = "" if found.split == VALIDATION else f", {found.split}"
            name = f"{task or study.frame.loc[study.frame['digest'] == digest, 'task_name'].iloc[0]} · {found.method}"
            told = {"task": f"{name} · {digest[:4]}{split}", "metric": found.metrics[task]}
            rows += [{**told, "first": a, "last": b, "fall": fall} for (a, b), fall in found.falls(task).items()]
    return pd.DataFrame(rows) if rows else None


def about(data: pd.DataFrame) -> str:
    """How many maps are left out."""
    maps = data["task"].nunique()
    return f"Of {maps} maps the first {MOST} are drawn; the CSV file has all." if maps > MOST else ""


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """One cell per span, darker where more of the score is lost."""
    alt = altair()
    data = data[data["task"].isin(data["task"].drop_duplicates()[:MOST])].copy()
    base = alt.Chart().encode(
        x=alt.X("last:O", title="last layer taken away", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("first:O", title="first layer taken away"),
    )
    told = tooltip(first="first", last="last", fall__n="share of the score that is lost")
    cells = base.mark_rect(style="heat").encode(fillOpacity=shade("fall"), tooltip=told)
    texts = base.mark_text(style="on-heat", fontSize=8).encode(text=alt.Text("percent:N"))
    data["percent"] = [fall_text(fall, 0) for fall in data["fall"]]
    size = 26 * max(data.groupby("task")["last"].nunique())
    return panels(alt.layer(cells, texts), data, "task", size=(max(size, 120), max(size, 120)), columns=3, square=True)
