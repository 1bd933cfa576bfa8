"""How much of the encoder a task needs: the score by a layer k, in three ways.

    k    layer k alone · a fusion over layers 0 … k · layers above k trained (``top:m``, m = L − k)

Symbols: ``L`` the number of the encoder's layers. The first two ways read no layer above k. The third reads all layers
and shows what training the layers above k gains.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import family, name_methods
from fusionkit.report.figures.encodings import panels, whole_numbers
from fusionkit.report.figures.scores import PROBE, lines, score_of
from fusionkit.report.report_data import ReportData
from fusionkit.specs import FROZEN

ALONE, OVER, ABOVE = f"{PROBE} k alone", "over 0 … k", "layers above k trained"
TOP = "top:"


def data(study: ReportData) -> pd.DataFrame | None:
    """One row per task, way and k, for tasks with two k or more of the second or third way."""
    # Other options of methods (frozen parts, precision) stay in the name, so that no mean is over several of these.
    named = name_methods(study.frame.assign(method=FROZEN, fusion_layers=None))
    rows = []
    for task, runs in study.whole.groupby("task_name", sort=False):
        records = [study.records[digest] for digest in runs["digest"]]
        depth = max(max(record["layers"]) for record in records)  # L: the last layer that any of the runs reads
        told = [_place(record, depth) for record in records]
        more = [name[len(fusion) :] for name, fusion in zip(named.loc[runs.index], runs["fusion"], strict=True)]
        names = [way + other for (way, _), other in zip(told, more, strict=True)]
        placed = runs.assign(way=[way for way, _ in told], k=[k for _, k in told], method=names)
        if max(placed[~placed["way"].isin((ALONE, ""))].groupby("method")["k"].nunique(), default=0) < 2:
            continue
        for (method, k), found in placed[placed["way"] != ""].groupby(["method", "k"]):
            rows.append({"task": study.task_with_unit(task), "method": method, "k": k, **score_of(study, task, found)})
    return pd.DataFrame(rows) if rows else None


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """One line per way, its interval as a bar at each k."""
    alt = altair()
    # Keeps marks at the ends away from the frame.
    scale = alt.Scale(nice=False, zero=False, padding=10)
    x = alt.X("k:Q", title="layer k of the encoder", axis=whole_numbers(data["k"]), scale=scale)
    return panels(lines(study, x, data, k="k"), data, "task")


def _place(record: dict[str, Any], depth: int) -> tuple[str, int]:
    """The way of a run and its k; no way for a run of another kind."""
    spec, layers = record["spec"], record["layers"]
    fusion, method = spec["fusion"], spec["method"]
    if method.startswith(TOP):
        return f"{fusion} · {ABOVE}", depth - int(method.removeprefix(TOP))
    if method != FROZEN:
        return "", 0
    if family(fusion) == PROBE or fusion == "last":
        return ALONE, layers[0]
    return (f"{fusion} {OVER}", layers[-1]) if layers == list(range(len(layers))) else ("", 0)
