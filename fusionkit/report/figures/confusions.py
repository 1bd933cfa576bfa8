"""Confusion matrices: one panel a task, of its best run whose store was found."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import panels, shade, tooltip
from fusionkit.report.predictions import AllPredictions, RunPredictions, confusion, validation_of
from fusionkit.report.report_data import ReportData

MOST_CLASSES = 18
REST = "(others)"


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a task and pair of classes: how many examples or words, and which share of the gold class."""
    best: dict[str, RunPredictions] = {}
    for look in looks.all:
        task = f"{look.task} · {look.column}" if f"· {look.column}" not in look.task else look.task
        if look.kind != "number" and (
            task not in best or validation_of(study, look) > validation_of(study, best[task])
        ):
            best[task] = look
    rows = [{"task": f"{task} · {look.method}", **row} for task, look in best.items() for row in counted(look)]
    return pd.DataFrame(rows) if rows else None


def counted(look: RunPredictions) -> list[dict[str, Any]]:
    """The counts of one run. Of many classes the most frequent are shown, the others together as :data:`REST`."""
    pairs = confusion(look)
    frequency: dict[str, int] = {}
    for gold, said, count in pairs:
        frequency[gold] = frequency.get(gold, 0) + count
        frequency.setdefault(said, 0)
    order = sorted(frequency, key=lambda name: (-frequency[name], name))
    kept = set(order if len(order) <= MOST_CLASSES else order[: MOST_CLASSES - 1])
    counts: dict[tuple[str, str], int] = {}
    for gold, said, count in pairs:
        key = gold if gold in kept else REST, said if said in kept else REST
        counts[key] = counts.get(key, 0) + count
    totals: dict[str, int] = {}
    for (gold, _), count in counts.items():
        totals[gold] = totals.get(gold, 0) + count
    return [
        {"gold": gold, "predicted": said, "count": count, "share": count / totals[gold]}
        for (gold, said), count in counts.items()
    ]


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """A cell a pair of classes, darker the larger its share of the gold class."""
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
        alt.layer(cells, texts), data, "task", list(dict.fromkeys(data["task"])), free=("x", "y"),
        size=(max(size, 120), max(size, 80)), names=118, below=120, columns=2, square=True,
    )  # fmt: skip
