"""The tables of the page: columns with their kinds, rows of cells with a text to show and a value to sort by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd

from fusionkit.report.display_names import metric_name, times_of, unit_of
from fusionkit.report.report_data import ReportData

STARS = {0.001: "***", 0.01: "**", 0.05: "*"}
NOTHING = "–"
# A cell: {"t": what is shown, "v": what it is sorted by, "b": the best, "s": what it says more quietly}.
Cell = dict[str, Any]


def matrix_table(study: ReportData, table: pd.DataFrame) -> dict[str, Any]:
    """A table as papers have it: one row a method, one column a task and size of draw."""
    several = len(study.shots) > 1
    pairs = list(dict.fromkeys(zip(table["task_name"], table["shots_name"], strict=True)))
    columns = [{"label": "method", "kind": "text"}]
    for task, shots in pairs:
        size = f" · {shots} shots" if several and shots != "all" else ""
        columns.append({"label": f"{task}{size}", "unit": unit_of(study.metric(task)), "kind": "number"})
    places = {(row["task_name"], row["shots_name"], row["method"]): row for _, row in table.iterrows()}
    rows = []
    for method in study.methods:
        cells: list[Cell] = [{"t": method, "v": study.methods.index(method), "m": method}]
        for task, shots in pairs:
            row = places.get((task, shots, method))
            cells.append({"t": NOTHING} if row is None else _score(row, brief=True))
        rows.append(cells)
    return {"columns": columns, "rows": rows}


def groups_table(study: ReportData, table: pd.DataFrame) -> dict[str, Any]:
    """One row a task, size of draw and method, with every column."""
    columns = [
        {"label": "task", "kind": "text", "filter": True},
        {"label": "shots", "kind": "number"},
        {"label": "method", "kind": "text", "filter": True},
        {"label": "score", "kind": "number"},
        {"label": "95 % interval", "kind": "number"},
        {"label": "Δ to baseline", "kind": "number"},
        {"label": "p", "kind": "number"},
        {"label": "parameters", "kind": "number"},
        {"label": "seconds a head", "kind": "number"},
        {"label": "runs", "kind": "number"},
        {"label": "chosen", "kind": "text"},
    ]
    chosen = study.chosen
    rows = []
    for _, row in table.iterrows():
        times = times_of(row["metric"])
        mine = chosen[(chosen["task_name"] == row["task_name"]) & (chosen["method"] == row["method"])]
        mine = mine[mine["shots_name"] == row["shots_name"]]
        shots = mine["shots"].iloc[0]
        rows.append([
            {"t": row["task_name"], "s": metric_name(row["metric"])},
            {"t": row["shots_name"], "v": 1e12 if pd.isna(shots) else float(shots)},
            {"t": row["method"], "v": study.methods.index(row["method"]), "m": row["method"]},
            _score(row),
            _number(row["low"], f"{_times(row['low'], times)} … {_times(row['high'], times)}"),
            _difference(row, times),
            _number(row["p_corrected"], _p(row["p_corrected"])),
            _number(row["parameters"], f"{row['parameters']:,.0f}"),
            _number(row["seconds"], f"{row['seconds']:,.1f}"),
            {"t": str(row["runs"]) + (f" ({row['failed']} failed)" if row["failed"] else ""), "v": int(row["runs"])},
            {"t": f"lr {mine['lr'].iloc[0]:g}, {mine['epochs'].iloc[0]} epochs, {mine['head'].iloc[0]}"},
        ])  # fmt: skip
    return {"columns": columns, "rows": rows}


def runs_table(study: ReportData) -> dict[str, Any]:
    """One row a run."""
    columns = [
        {"label": "run", "kind": "text"},
        {"label": "task", "kind": "text", "filter": True},
        {"label": "method", "kind": "text", "filter": True},
        {"label": "shots", "kind": "number"},
        {"label": "seeds", "kind": "text"},
        {"label": "rate", "kind": "number"},
        {"label": "test", "kind": "number"},
        {"label": "validation", "kind": "number"},
        {"label": "best epoch", "kind": "number"},
        {"label": "seconds", "kind": "number"},
    ]
    names = [
        "digest", "task_name", "method", "shots", "shots_name", "data_seed", "init_seed", "lr", "metric", "score",
        "validation_score", "best_epoch", "seconds", "status",
    ]  # fmt: skip
    place = {method: number for number, method in enumerate(study.methods)}
    rows, found = [], study.frame[names].to_dict(orient="records")
    for one in (SimpleNamespace(**{str(name): value for name, value in row.items()}) for row in found):
        times = times_of(one.metric)
        rows.append([
            {"t": one.digest[:10]},
            {"t": one.task_name},
            {"t": one.method, "v": place[one.method], "m": one.method},
            {"t": one.shots_name, "v": 1e12 if pd.isna(one.shots) else float(one.shots)},
            {"t": f"{one.data_seed} / {one.init_seed}"},
            {"t": f"{one.lr:g}", "v": one.lr},
            {"t": "failed"} if one.status != "finished" else _number(one.score, _times(one.score, times)),
            _number(one.validation_score, _times(one.validation_score, times)),
            _number(one.best_epoch, f"{one.best_epoch:.0f}"),
            _number(one.seconds, f"{one.seconds:,.1f}"),
        ])  # fmt: skip
    return {"columns": columns, "rows": rows}


def _score(row: Any, brief: bool = False) -> Cell:
    if pd.isna(row["mean"]):
        return {"t": "failed"}
    times = times_of(row["metric"])
    deviation = "" if pd.isna(row["std"]) else f"± {times * row['std']:.1f}"
    cell: Cell = {"t": f"{times * row['mean']:.1f}", "v": float(row["mean"]), "s": deviation}
    if row["is_best"]:
        cell["b"] = 1
    p = row["p_corrected"]
    if brief and pd.notna(p) and (stars := next((sign for level, sign in STARS.items() if p <= level), "")):
        cell["x"] = stars
    return cell


def _difference(row: Any, times: float) -> Cell:
    if row["is_baseline"]:
        return {"t": "baseline", "v": 0.0}
    if pd.isna(row["difference"]):
        return {"t": NOTHING}
    spread = "" if pd.isna(row["difference_low"]) else (
        f"{times * row['difference_low']:+.1f} … {times * row['difference_high']:+.1f}"
    )  # fmt: skip
    return {"t": f"{times * row['difference']:+.1f}", "v": float(row["difference"]), "s": spread}


def _number(value: Any, text: str) -> Cell:
    return {"t": NOTHING} if value is None or pd.isna(value) else {"t": text, "v": float(value)}


def _times(value: Any, times: float) -> str:
    return NOTHING if value is None or pd.isna(value) else f"{times * value:.1f}"


def _p(p: Any) -> str:
    if p is None or pd.isna(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
