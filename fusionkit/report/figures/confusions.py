"""Confusion matrices: one panel per task, of its best run whose store was found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from fusionkit.evaluation.counts import REST, confusions, most_frequent
from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import panels, shade, tooltip
from fusionkit.report.predictions import RunPredictions, all_predictions, best_of_each
from fusionkit.report.report_data import ReportData
from fusionkit.statistics.kept_answers import CLASS, NUMBER, TAGS

MOST_CLASSES = 18


def data(study: ReportData) -> pd.DataFrame | None:
    """One row per task and pair of classes: how many examples or words, and which share of the gold class."""
    rows = []
    for run in best_of_each(run for run in all_predictions(study).runs if run.kind != NUMBER):
        task = f"{run.task} · {run.column}" if f"· {run.column}" not in run.task else run.task
        rows += [{"task": f"{task} · {run.method}", **row} for row in counted(run)]
    return pd.DataFrame(rows) if rows else None


def counted(run: RunPredictions) -> list[dict[str, Any]]:
    """The counts of one run over its examples or words; none for numbers.

    Of many classes the most frequent are shown, the others together as :data:`REST`.
    """
    if run.kind == NUMBER:
        return []
    kind = CLASS if run.kind == CLASS else TAGS  # for spans the tags of their words are counted
    _, counts = most_frequent(confusions(kind, run.gold, run.predicted), MOST_CLASSES)
    totals = Counter[str]()
    for (gold, _), count in counts.items():
        totals[gold] += count
    return [
        {"gold": gold, "predicted": said, "count": count, "share": count / totals[gold]}
        for (gold, said), count in sorted(counts.items())
    ]


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """One cell per pair of classes, darker where it is a larger share of the gold class."""
    alt = altair()
    order = data.groupby("gold")["count"].sum().sort_values(ascending=False).index.tolist()
    order = [name for name in order if name != REST] + [REST]
    axis = {"labelFontSize": 9}
    base = alt.Chart().encode(
        x=alt.X("predicted:N", title="predicted", sort=order, axis=alt.Axis(labelAngle=-60, labelLimit=110, **axis)),
        y=alt.Y("gold:N", title="gold", sort=order, axis=alt.Axis(**axis)),
    )
    told = tooltip(gold="gold", predicted="predicted", count="count", share__n="share of gold")
    cells = base.mark_rect(style="heat").encode(fillOpacity=shade("share"), tooltip=told)
    texts = base.mark_text(style="on-heat", fontSize=8).encode(text="count:Q")
    size = 22 * min(max(data.groupby("task")["gold"].nunique()), MOST_CLASSES)
    return panels(
        alt.layer(cells, texts), data, "task", free=("x", "y"),
        size=(max(size, 120), max(size, 80)), names=118, below=120, columns=2, square=True,
    )  # fmt: skip
