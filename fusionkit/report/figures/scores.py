"""Scores by what a run was given or cost: labelled examples, epochs, parameters, seconds, one layer alone.

A row of data is the mean score of some runs of one task with its 95 % t interval, in percent except for perplexities
and cross-entropies.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.metrics import times_of
from fusionkit.report.altair import altair
from fusionkit.report.display_names import draw_of, family
from fusionkit.report.figures.encodings import (
    COUNTS,
    SECONDS,
    colours_of,
    dashes_of,
    methods_of,
    panels,
    score_axis,
    shapes_of,
    spread,
    tooltip,
    whole_numbers,
)
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.comparison.pareto import PARETO, with_pareto
from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.runs.errors_of_means import half_over_seeds
from fusionkit.runs.summary import RunGroups, learned_parameters, scores_of, summarise

# Of each figure by a cost: the runs' column, and the title of its axis.
COSTS = {
    "parameters": ("trained_parameters", "parameters that are trained"),
    "seconds": ("seconds_alone", "seconds of one head trained alone"),
    "bytes": ("kept_bytes", "bytes that a head keeps"),
    "memory": ("peak_memory_alone", "peak bytes of a training step"),
}
PROBE = "layer"  # the method name under which the line of single layers is drawn


def by_shots(study: ReportData) -> pd.DataFrame | None:
    """One row per task, split, size of draw and method, for tasks with two sizes or more."""
    runs = study.chosen
    sizes = runs.groupby("task_name")["shots_name"].transform("nunique")
    rows = [
        {"task": study.task_with_unit(task, f" · {split}"), "split": split, "shots": shots, "method": method, **score}
        for (task, shots, method), group in runs[sizes > 1].groupby(CELL, sort=False)
        for split, score in _split_scores(study, task, group)
    ]
    return pd.DataFrame(rows) if rows else None


def by_epochs(study: ReportData) -> pd.DataFrame | None:
    """One row per task, split, size of draw, method and number of epochs, where a task and size of draw has two numbers
    or more.
    """
    runs = study.chosen_within([*CELL, "epochs"])
    numbers = runs.groupby(["task_name", "shots_name"])["epochs"].transform("nunique")
    rows = []
    for (task, shots, method, _), group in runs[numbers > 1].groupby([*CELL, "epochs"], sort=False):
        given = {"shots": shots, "method": method, "epochs": int(group["epochs"].iloc[0])}
        for split, score in _split_scores(study, task, group):
            name = study.task_with_unit(task, f"{draw_of(shots)} · {split}")
            rows.append({"task": name, "split": split, **given, **score})
    return pd.DataFrame(rows) if rows else None


def by_cost(cost: str, study: ReportData) -> pd.DataFrame | None:
    """One row per task and method of the largest draw whose runs tell this cost: its score, the means of all costs, and
    whether it is worth this one.
    """
    rows, worth = [], _worth_it(study, COSTS[cost][0])
    for (task, method), runs in study.whole.groupby(["task_name", "method"], sort=False):
        score = score_of(study, task, runs)
        told = runs.assign(trained_parameters=learned_parameters(runs))
        costs = {
            **{name: told[column].astype(float).mean() for name, (column, _) in COSTS.items()},
            "fusion_parameters": runs["fusion_parameters"].astype(float).mean(),
            "runs": score.pop("runs"),
        }
        if pd.notna(costs[cost]):
            mark = {PARETO: (task, method) in worth}
            rows.append({"task": study.task_with_unit(task), "method": method, **score, **costs, **mark})
    return pd.DataFrame(rows) if rows else None


def _worth_it(study: ReportData, column: str) -> set[tuple[str, str]]:
    """The tasks and methods better than all cheaper ones (:mod:`fusionkit.runs.comparison.pareto`)."""
    by = ["task_name", "method"]
    groups = RunGroups(study.whole, by, answers=study.answers)
    table = summarise(groups)
    rivals = Rivals(table, groups, same=by[:1])
    with suppress(UsageError):  # no run tells this cost
        marked = with_pareto(table, rivals, column)
        return set(marked.loc[marked[PARETO].fillna(False), by].astype(str).itertuples(index=False, name=None))
    return set()


def by_layer(study: ReportData) -> pd.DataFrame | None:
    """One row per task and probed layer, and one per task and fusion over several layers, with ``layer`` empty."""
    runs = study.whole
    single = runs["fusion"].map(family) == PROBE
    first = runs["digest"].map(lambda digest: float(study.records[digest]["layers"][0]))
    # Other options of methods (frozen parts, precision) stay in the name, so that no mean is over several of these.
    probes = [PROBE + method[len(fusion) :] for method, fusion in zip(runs["method"], runs["fusion"], strict=True)]
    probed = runs.assign(layer=first.where(single), method=runs["method"].where(~single, probes))
    rows = []
    for task, group in probed.groupby("task_name", sort=False):
        if group["layer"].nunique() < 2:
            continue
        for (layer, method), found in group.groupby(["layer", "method"], dropna=False):
            name = study.task_with_unit(task)
            rows.append({"task": name, "method": method, "layer": layer, **score_of(study, task, found)})
    return pd.DataFrame(rows) if rows else None


def shots_chart(study: ReportData, data: pd.DataFrame) -> Any:
    """One line per method, its interval as a bar at each size."""
    alt = altair()
    sizes = [size for size in study.shots if size in set(data["shots"])]
    x = alt.X("shots:N", title="labelled examples a class", sort=sizes, axis=alt.Axis(labelAngle=0))
    return panels(lines(study, x, data, shots="shots"), data, "task", pairs=_has_both(data))


def epochs_chart(study: ReportData, data: pd.DataFrame) -> Any:
    """One line per method, its interval as a bar at each number of epochs."""
    alt = altair()
    x = alt.X("epochs:O", title="epochs", axis=alt.Axis(labelAngle=0))
    order = data.assign(place=data["shots"].map(study.shots.index)).sort_values("place", kind="stable")["task"]
    return panels(lines(study, x, data, epochs="epochs"), data, "task", order, pairs=_has_both(data))


def cost_chart(x: str, study: ReportData, data: pd.DataFrame) -> Any:
    """One point per method with its interval, the cost on a logarithmic axis; a ring if a method is worth its cost."""
    alt = altair()
    methods = methods_of(data)
    # A frozen LM head under `last` has no learned parameters, and a logarithmic axis has no 0.
    scale = alt.Scale(type="log", nice=False, padding=12) if (data[x] > 0).all() else alt.Scale(type="symlog")
    axis = alt.Axis(format=COUNTS.get(x, SECONDS), tickCount=4)
    base = alt.Chart().encode(
        x=alt.X(f"{x}:Q", title=COSTS[x][1], scale=scale, axis=axis), color=colours_of(study, methods)
    )
    told = tooltip(
        method="method", score__s="mean", low__s="from", high__s="to",
        parameters__n="parameters", fusion_parameters__n="of the fusion", seconds__n="seconds",
        bytes__n="bytes that are kept", memory__n="peak bytes", runs="runs",
    )  # fmt: skip
    bars = spread(base.mark_rule(strokeWidth=1, opacity=0.55))
    points = base.mark_point(filled=True, size=75, opacity=1).encode(
        y=score_axis(), shape=shapes_of(study, methods), tooltip=told
    )  # fmt: skip
    # Hidden instead of left out: in a panel without any ring a scale would have no extent.
    shown = alt.condition(f"datum.{PARETO}", alt.value(1), alt.value(0))
    rings = base.mark_point(filled=False, size=260, strokeWidth=1.5).encode(y=score_axis(), opacity=shown)
    return panels(alt.layer(bars, points, rings), data, "task")


def layer_chart(study: ReportData, data: pd.DataFrame) -> Any:
    """The single layers as a line, the other methods as horizontal lines."""
    alt = altair()
    methods, y = methods_of(data), score_axis()
    base = alt.Chart().encode(color=colours_of(study, methods))
    x = alt.X("layer:Q", title="the one layer that is read", axis=whole_numbers(data["layer"]))
    told = tooltip(method="method", layer="layer", score__s="mean", low__s="from", high__s="to", runs="runs")
    probes = base.transform_filter("isValid(datum.layer)")
    levels = base.transform_filter("!isValid(datum.layer)").mark_rule(strokeWidth=1.4).encode(
        y=y, strokeDash=dashes_of(study, methods), tooltip=told
    )  # fmt: skip
    band = spread(probes.mark_area(opacity=0.15).encode(x=x))
    line = probes.mark_line(strokeWidth=2).encode(x=x, y=y)
    points = probes.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, tooltip=told)
    return panels(alt.layer(levels, band, line, points), data, "task")


def _split_scores(study: ReportData, task: object, runs: pd.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """The score of some runs by split: on test, and on validation, unless test is of other data than they were trained
    on.
    """
    found = [("test", score_of(study, task, runs))] if runs["score"].notna().any() else []
    if not found or (runs["evaluated"] == runs["data"]).all():
        found.append(("validation", score_of(study, task, runs.assign(score=runs["validation_score"]))))
    return found


def _has_both(data: pd.DataFrame) -> bool:
    """Whether there are panels of both test and validation, to put beside each other."""
    return len(set(data["split"])) > 1


def score_of(study: ReportData, task: object, runs: pd.DataFrame) -> dict[str, Any]:
    """Mean and interval of some runs of a task, in the unit in which they are shown."""
    scores, times = scores_of(runs), times_of(study.metric(task))
    known = runs[np.isfinite(scores)]
    scores = scores[np.isfinite(scores)] * times
    half = half_over_seeds(scores, known["data_seed"].tolist(), known["init_seed"].tolist())
    mean = float(scores.mean()) if len(scores) else np.nan
    return {"score": mean, "low": mean - half, "high": mean + half, "runs": len(runs)}


def lines(study: ReportData, x: Any, data: pd.DataFrame, **told: str) -> Any:
    """One line per method, its interval as a bar at each place of ``x``; ``told`` are more fields for the tooltip."""
    methods, score = methods_of(data), score_axis()
    base = altair().Chart().encode(x=x, color=colours_of(study, methods))
    shown = tooltip(method="method", **told, score__s="mean", low__s="from", high__s="to", runs="runs")
    line = base.mark_line(strokeWidth=2).encode(y=score, strokeDash=dashes_of(study, methods))
    bars = spread(base.mark_rule(strokeWidth=1, opacity=0.55))
    points = base.mark_point(filled=True, size=50, opacity=1).encode(
        y=score, shape=shapes_of(study, methods), tooltip=shown
    )
    return altair().layer(bars, line, points)
