"""Curves of training: validation score by epoch and by time, loss by step and by time.

    steps until epoch e  =  e · ⌈examples / batch size⌉
    seconds from the text until epoch e  =  s + t_e

Symbols: examples, the number of those that the run learns from in an epoch; ``s`` the seconds that encoding the run's
store took, 0 where it reads no store; ``t_e`` those of the run, trained alone, until epoch e.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fusionkit.metrics import times_of
from fusionkit.names import MEAN
from fusionkit.report.altair import altair
from fusionkit.report.display_names import draw_of, of_own_stores
from fusionkit.report.figures.encodings import (
    COUNTS,
    SECONDS,
    colours_of,
    dashes_of,
    methods_of,
    panels,
    score_axis,
    spread,
    tooltip,
    whole_numbers,
)
from fusionkit.report.figures.from_text import reads_store
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.errors_of_means import half_over_seeds
from fusionkit.runs.record import timed_curve
from fusionkit.runs.summary import SEEDS

X_TITLES = {
    "epoch": "epoch",
    "seconds": "seconds of one head trained alone",
    "from_text": "seconds of one head and of encoding its store",
    "step": "steps of the optimizer",
}
LOG = ("seconds", "from_text", "step")
MOST_BANDS = 5  # more of them hide each other


def data(x: str, y: str, study: ReportData) -> pd.DataFrame | None:
    """One row per task, method and epoch: the mean score or loss over the seeds, with its interval.

    Rows are of the task's largest draw; scores by epoch also of its smallest, in a panel of its own.
    """
    is_score = y == "validation_score"
    runs = study.smallest_and_largest if is_score and x == "epoch" else study.whole
    runs = runs.drop_duplicates(["digest", "task_name"])
    runs = runs[~of_own_stores(runs) | (runs["task"] == MEAN)]  # for such tasks an epoch has only their mean
    several = set(runs["task_name"][runs.groupby("task_name")["shots_name"].transform("nunique") > 1])
    rows: list[dict[str, Any]] = []
    for digest, task, shots, method, draw, init in runs[["digest", *CELL, *SEEDS]].itertuples(index=False):
        record = study.records[digest]
        times = times_of(study.metric(task)) if is_score else 1.0
        steps = study.epoch_steps(record)
        encoding = _encoding(study, record)
        for number, point in enumerate(timed_curve(record), start=1):
            at = {
                **point,
                "seconds": (alone := point["seconds_alone"]),
                "from_text": None if encoding is None or alone is None else encoding + alone,
                "step": None if steps is None else min(steps * number, record.get("steps") or math.inf),
            }[x]
            value = point.get(y)
            if at is not None and value is not None and math.isfinite(value):
                named = draw_of(shots) if task in several else ""
                cell = {"task": task, "draw": named, "method": method}
                rows.append({**cell, "epoch": point["epoch"], "x": at, "value": times * value, "seeds": (draw, init)})
    if not rows:
        return None
    found = []
    cells = pd.DataFrame(rows).groupby(["task", "draw", "method", "epoch"], sort=False)
    for (task, of_draw, method, epoch), group in cells:
        values, (draws, inits) = group["value"].to_numpy(), zip(*group["seeds"], strict=True)
        mean, half = float(values.mean()), half_over_seeds(values, draws, inits)
        name = study.task_with_unit(task, str(of_draw)) if is_score else task
        place = {"epoch": epoch} if x == "epoch" else {"epoch": epoch, x: group["x"].mean()}
        told = {"value": mean, "low": mean - half, "high": mean + half, "runs": len(group)}
        found.append({"task": name, "method": method, **place, **told})
    return pd.DataFrame(found)


def _encoding(study: ReportData, record: Mapping[str, Any]) -> float | None:
    """The seconds that encoding the stores of a run took; None unless each of them tells its own."""
    if not reads_store(record):
        return 0.0
    named = ",".join(str(record["spec"].get(name) or "") for name in ("store", "mix", "evaluate_on", "task_stores"))
    told = [study.encode_seconds.get(store) for store in {part.partition(":")[0] for part in named.split(",")} - {""}]
    return None if None in told else sum(sum(each.values()) for each in told if each is not None)


def chart(x: str, study: ReportData, data: pd.DataFrame) -> Any:
    """One line per method within the band of its interval."""
    alt = altair()
    methods = methods_of(data)
    scale = alt.Scale(type="log", nice=False) if x in LOG else alt.Scale(nice=False, zero=False)
    axis = alt.Axis(tickCount=4, format=COUNTS.get(x, SECONDS)) if x in LOG else whole_numbers(data[x])
    base = alt.Chart().encode(
        x=alt.X(f"{x}:Q", title=X_TITLES[x], scale=scale, axis=axis), color=colours_of(study, methods)
    )
    level = score_axis("value")
    told = tooltip(method="method", epoch="epoch", **{f"{x}__n": X_TITLES[x]}, value__n="mean", runs="runs")
    line = base.mark_line(strokeWidth=1.8).encode(y=level, strokeDash=dashes_of(study, methods))
    points = base.mark_point(filled=True, size=12, opacity=1).encode(y=level, tooltip=told)
    few = data.groupby("task")["method"].nunique().max() <= MOST_BANDS
    bands = [spread(base.mark_area(opacity=0.13), "value")] if few else []
    return panels(alt.layer(*bands, line, points), data, "task", free=("x", "y"))
