"""Score by the seconds from the text to the scored head, and after how many heads a store has paid for itself.

    seconds a head(n)  =  s / n + t            n = 1, 10, 100 heads over one store; s = 0 where a run reads no store
    paid for itself    ⇔  s + n · t_i < n · t_j

Symbols: ``s`` the seconds that encoding the store took, from the records of its parts; ``t`` the seconds of one run
trained alone, its scorings of validation and test included; ``i`` a head over the store, ``j`` a method that trains
through the encoder and starts from the text. Each rate that was tried counts as a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import (
    SECONDS,
    colours_of,
    methods_of,
    panels,
    score_axis,
    shapes_of,
    spread,
    tooltip,
)
from fusionkit.report.figures.scores import score_of
from fusionkit.report.report_data import ReportData
from fusionkit.specs import FROZEN

HEADS = (1, 10, 100)


def data(study: ReportData) -> pd.DataFrame | None:
    """One row per task, method and number of heads; ``from_text`` is false where runs read the store. Only tasks whose
    runs read one store that says how long its encoding took. ``paid_from`` and ``paid_at_most`` are the numbers of
    heads from which on the store has paid for itself against a method that starts from the text, with the quickest and
    with the slowest head over it; empty where no number of heads is enough.
    """
    rows: list[dict[str, Any]] = []
    for task, runs in study.whole[study.whole[["mix", "task_stores", "evaluate_on"]].isna().all(axis=1)].groupby(
        "task_name", sort=False
    ):
        digests = set(runs["store"].astype(str))
        encoding = study.encode_seconds.get(digests.pop()) if len(digests) == 1 else None
        if encoding is None:
            continue
        once, name = sum(encoding.values()), study.task_with_unit(task)
        first = runs.groupby("method", sort=False).first()
        reads = {method: reads_store(study.records[digest]) for method, digest in first["digest"].items()}
        alone = runs.groupby("method", sort=False)["seconds_alone"].mean().astype(float)
        over = [seconds for method, seconds in alone.items() if reads[method] and math.isfinite(seconds)]
        for method, group in runs.groupby("method", sort=False):
            told = {"task": name, "method": method, "from_text": not reads[method], **score_of(study, task, group)}
            if not reads[method] and over:
                told |= {"paid_from": paid_after(once, min(over), alone[method])}
                told |= {"paid_at_most": paid_after(once, max(over), alone[method])}
            share = once if reads[method] else 0.0
            rows += [{**told, "heads": n, "seconds": share / n + alone[method]} for n in HEADS]
    found = pd.DataFrame(rows)
    return found[found["seconds"] > 0].reset_index(drop=True) if rows else None


def paid_after(once: float, over: float, through: float) -> float | None:
    """The fewest heads n with ``once + n · over < n · through``, all in seconds; None if there is no such n."""
    gain = through - over
    return float(math.floor(once / gain) + 1) if gain > 0 else None


def about(data: pd.DataFrame) -> str:
    """The break-even points in words."""
    if "paid_from" not in data:
        return ""
    told = []
    through = data[data["from_text"]].drop_duplicates(["task", "method"])
    if (through[["paid_from", "paid_at_most"]] == 1).all(axis=None):
        return "One encoding and one head over it take fewer seconds than one run of any method from the text."
    for task, group in through.dropna(subset="paid_from").groupby("task", sort=False):
        spans = zip(group["paid_from"].astype(float), group["paid_at_most"].astype(float), group["method"], strict=True)
        after = [f"{_span(least, most)} ({method})" for least, most, method in spans]
        told.append(f"{task}: {', '.join(after)}")
    if not told:
        return ""
    seconds = (
        "From this number of heads on, one encoding and the heads over it take fewer seconds than as many runs from"
    )
    return f"{seconds} the text, whatever either scores. {'; '.join(told)}."


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """A panel per task, three points on a line per method, the largest of 1 head; one point where all are the same."""
    alt = altair()
    methods = methods_of(data)
    # A logarithmic axis has a tick for each of 1 … 9: labels that would touch are left out.
    axis = alt.Axis(format=SECONDS, labelOverlap="greedy", labelSeparation=10)
    scale = alt.Scale(type="log", nice=False, padding=14)
    x, y = alt.X("seconds:Q", title="seconds from the text to the score", scale=scale, axis=axis), score_axis()
    base = alt.Chart().encode(x=x, color=colours_of(study, methods))
    told = tooltip(
        method="method", score__s="mean", low__s="from", high__s="to", seconds__n="seconds", heads="heads", runs="runs"
    )
    trails = base.mark_line(strokeWidth=1, opacity=0.5).encode(y=y)
    bars = spread(base.transform_filter("datum.heads == 1").mark_rule(strokeWidth=1, opacity=0.4))
    size = alt.Size("heads:O", title="heads over one store", scale=alt.Scale(domain=list(HEADS), range=[85, 45, 18]))
    points = base.mark_point(filled=True, opacity=1).encode(
        y=y, shape=shapes_of(study, methods), size=size, tooltip=told
    )
    return panels(alt.layer(trails, bars, points), data, "task", free=("x", "y"), columns=2, size=(320, 200))


def reads_store(record: Mapping[str, Any]) -> bool:
    """Whether a run reads stored states: a head over frozen ones, and upper layers trained over a stored layer."""
    spec = record["spec"]
    return spec["method"] == FROZEN or spec.get("from_layer") is not None


def _span(least: float, most: float) -> str:
    """``3``, ``2 to 5``, or ``2 or more`` where the slowest head never pays."""
    if math.isnan(most):
        return f"{least:.0f} or more"
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"
