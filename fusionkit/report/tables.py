"""The tables of a report: each method on each task, compared with the baseline; every group, and every run.

For the page a table is columns with their kinds, and rows of cells with a text to show and a value to sort by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.errors import UsageError
from fusionkit.metrics import metric_name, times_of
from fusionkit.plural import counted
from fusionkit.report.display_names import METHOD_AXES, bounds_of, unit_of
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.comparison.compare import COMPARED, STARS, compare
from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.runs.comparison.ties import TIED, with_ties
from fusionkit.runs.floors import CLASSES_TOLD, MAJORITY, MARK, beats
from fusionkit.runs.shown_split import SCORED_ON, VALIDATION
from fusionkit.runs.summary import OVER, RunGroups, scores_of, summarise
from fusionkit.runs.summary_notes import error_notes
from fusionkit.runs.tables.comparison_notes import powerless, test_name

PLAIN = "last"  # the baseline unless the user names another
NOTHING = "–"
ALL_SHOTS = 1e12  # sort value of a draw of all examples
FILTERED = ("task", "method")
TEXTS = (*FILTERED, "run", "seeds", "chosen", "scored on")  # columns that are sorted as texts
# A cell: {"t": shown text, "v": value to sort by, "b": 1 for the best, "s": secondary text, "x": stars, "m": method}.
Cell = dict[str, Any]


def compared(study: ReportData, baseline: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """One row per task, draw size and method: the columns of :func:`fusionkit.fit.compare`, ``is_beaten`` and
    ``is_best``; and notes.

    Args:
        baseline: a method; None means ``last``, if there is any and it has pairs.

    Raises:
        UsageError: no such method, or none of its runs has a partner.
    """
    groups, notes = RunGroups(study.chosen, CELL, answers=study.answers), list(study.choice_notes)
    named = baseline or PLAIN
    # After ``method=`` a fusion's own options could end the name: attention:heads=2,dropout=0.1.
    fixed = named if "," in named and (study.chosen["method"] == named).any() else f"method={named}"
    try:
        table = compare(groups, fixed)
        notes.append(
            f"Δ is the mean difference to {named} over pairs of runs with the same seeds; p by {test_name(table)}, "
            "corrected by Holm for all comparisons of the table."
        )
        notes += map(_sentence, powerless(table))
        differ = {name for names in table["also_differs"].dropna() for name in names.split(", ")}
        if also := sorted(differ - {"fusion", *METHOD_AXES}):  # a method's name has these already
            notes.append(f"Some methods also differ from it in {', '.join(also)}: validation chose these.")
    except UsageError as error:
        if baseline is not None:
            raise
        notes.append(f"Not compared with {PLAIN}: {error.what}.")
        table = summarise(groups)
        table[list(COMPARED)] = None
    notes += map(_sentence, error_notes(table, table.attrs[OVER]))
    table = with_ties(table, Rivals(table, groups, same=CELL[:2]))
    table, beaten = beside_floors(table, floor_scores(study))
    if (table[SCORED_ON] == VALIDATION).any():
        notes.append("Scores on validation are of the examples that chose the epoch: these scores are optimistic.")
    # Without a test of the best against any other, none of them is marked.
    return table.assign(is_best=table[TIED].fillna(False).astype(bool)), notes + beaten


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def floor_scores(study: ReportData) -> dict[tuple[str, str, str], NDArray[np.float64]]:
    """The scores of each floor's runs, by task, size of draw and the floor's name."""
    runs = study.floors_beside
    if runs.empty:
        return {}
    groups = runs.groupby([*CELL[:2], "fusion"], sort=False)
    return {tuple(map(str, key)): scores_of(group) for key, group in groups}  # type: ignore[misc]


def beside_floors(
    table: pd.DataFrame, floors: Mapping[tuple[str, str, str], NDArray[np.float64]]
) -> tuple[pd.DataFrame, list[str]]:
    """Add ``is_beaten``: whether a row's mean is not above the majority's; and a note on each metric of these rows."""
    means = {key[:2]: float(scores.mean()) for key, scores in floors.items() if key[2] == MAJORITY}
    cells = list(zip(table["task_name"], table["shots_name"], strict=True))
    beaten = [
        beats(str(metric), mean, means.get(cell)) is False
        for cell, metric, mean in zip(cells, table["metric"], table["mean"], strict=True)
    ]
    notes = [
        f"{MARK} not above the majority of the training labels: "
        + (
            f"{metric_name(metric)} cannot tell such a head from none. "
            "`fusionkit results --metric matthews` or `--metric macro_f1` can."
            if metric in CLASSES_TOLD
            else f"by {metric_name(metric)} such a head learned nothing."
        )
        for metric in table.loc[beaten, "metric"].unique()
    ]
    return table.assign(is_beaten=beaten), notes


def matrix_tables(study: ReportData, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Tables as in papers: one row per method, one column per task and size of draw. A column that would leave half of
    a table's cells empty, because other methods were tried on it, is put into another table.
    """
    several = len(study.shots) > 1
    groups = {tuple(row[CELL]): row for _, row in table.iterrows()}
    tried: dict[tuple[str, str], set[str]] = {}
    for task, shots, method in groups:
        tried.setdefault((task, shots), set()).add(method)
    alike: list[list[tuple[str, str]]] = []
    for pair in sorted(tried, key=lambda pair: (study.tasks.index(pair[0]), study.shots.index(pair[1]))):
        home = next((pairs for pairs in alike if _is_half_full([tried[one] for one in (*pairs, pair)])), None)
        alike.append([pair]) if home is None else home.append(pair)
    found, floors = [], floor_scores(study)
    for pairs in alike:
        kept = set().union(*(tried[pair] for pair in pairs))
        columns = [{"label": "method", "kind": "text"}]
        for task, shots in pairs:
            size = f" · {counted(int(shots), 'shot')}" if several and shots != "all" else ""
            scored = {groups[key][SCORED_ON] for key in groups if key[:2] == (task, shots)}
            size += f" · {VALIDATION}" if VALIDATION in scored else ""
            columns.append({"label": f"{task}{size}", "unit": unit_of(study.metric(task)), "kind": "number"})
        rows = [
            [_method(study, method), *(_brief(groups.get((*pair, method))) for pair in pairs)]
            for method in study.methods
            if method in kept
        ]
        for place, name in enumerate(dict.fromkeys(key[2] for key in floors if key[:2] in pairs)):
            cells = [_floor(floors.get((*pair, name)), times_of(study.metric(pair[0]))) for pair in pairs]
            rows.append([{"t": name, "v": len(study.methods) + place}, *cells])
        found.append({"columns": columns, "rows": rows})
    return found


def _length(run: Any) -> str | None:
    """How long a run trains, in epochs or in steps; None for a floor."""
    lengths = ((run["epochs"], "epoch"), (run["max_steps"], "step"))
    return next((counted(int(number), what) for number, what in lengths if pd.notna(number)), None)


def _is_half_full(columns: Sequence[set[str]]) -> bool:
    """Whether more than half of a table's cells are filled, if its columns have these methods."""
    return 2 * sum(map(len, columns)) > len(columns) * len(set().union(*columns))


def _brief(row: Any) -> Cell:
    return {"t": NOTHING} if row is None else _score(row, brief=True)


def groups_table(study: ReportData, table: pd.DataFrame) -> dict[str, Any]:
    """One row per task, size of draw and method, with every column."""
    rows, chosen = [], study.chosen.drop_duplicates(CELL).set_index(CELL)
    for _, row in table.iterrows():
        metric, first = study.metric(row["task_name"]), chosen.loc[tuple(row[CELL])]
        times, told = times_of(metric), [f"lr {_rates(first)}", _length(first), first["head"]]
        rows.append([
            {"t": row["task_name"], "s": metric_name(row["metric"])},
            _shots(row["shots_name"], first["shots"]),
            _method(study, row["method"]),
            {"t": row[SCORED_ON]},
            _score(row),
            _interval(row, metric),
            _difference(row, times),
            _p_value(row["p_corrected"]),
            _number(row["parameters"], ",.0f"),
            _number(row["seconds_alone"], ",.1f"),
            {"t": str(row["runs"]), "v": int(row["runs"])},
            {"t": ", ".join(each for each in told if not pd.isna(each))},
        ])  # fmt: skip
    columns = _columns(
        "task", "shots", "method", "scored on", "score", "95 % interval", "Δ to baseline", "p", "parameters",
        "seconds alone", "runs", "chosen",
    )  # fmt: skip
    return {"columns": columns, "rows": rows}


def _rates(run: Any) -> str:
    """The rate of a run's head, and that of its encoder where it is trained."""
    return f"{run['lr']:g}" + ("" if pd.isna(run["encoder_lr"]) else f", encoder lr {run['encoder_lr']:g}")


def _floor(scores: NDArray[np.float64] | None, times: float) -> Cell:
    if scores is None:
        return {"t": NOTHING}
    deviation = f"± {times * np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
    return {"t": f"{times * scores.mean():.1f}", "v": float(scores.mean()), "s": deviation}


def runs_table(study: ReportData) -> dict[str, Any]:
    """One row per run."""
    rows = []
    for run in study.frame.to_dict(orient="records"):
        times = times_of(run["metric"])
        rows.append([
            {"t": run["digest"][:10]},
            {"t": run["task_name"]},
            _method(study, run["method"]),
            _shots(run["shots_name"], run["shots"]),
            {"t": f"{run['data_seed']} / {run['init_seed']}"},
            {"t": _rates(run), "v": run["lr"]},
            _number(run["score"], ".1f", times) if run["status"] == "finished" else {"t": run["status"]},
            _number(run["validation_score"], ".1f", times),
            _number(run["best_epoch"], ".0f"),
            _number(run["seconds_alone"], ",.1f"),
        ])  # fmt: skip
    columns = _columns(
        "run", "task", "method", "shots", "seeds", "rate", "test", "validation", "best epoch", "seconds alone"
    )  # fmt: skip
    return {"columns": columns, "rows": rows}


def _columns(*labels: str) -> list[dict[str, Any]]:
    return [
        {"label": label, "kind": "text" if label in TEXTS else "number", "filter": label in FILTERED}
        for label in labels
    ]


def _method(study: ReportData, method: str) -> Cell:
    return {"t": method, "v": study.methods.index(method), "m": method}


def _shots(name: str, shots: float | None) -> Cell:
    return {"t": name, "v": ALL_SHOTS if pd.isna(shots) else float(shots)}


def _score(row: Any, brief: bool = False) -> Cell:
    times = times_of(row["metric"])
    deviation = "" if pd.isna(row["std"]) else f"± {times * row['std']:.1f}"
    mark = f" {MARK}" if row["is_beaten"] else ""
    cell: Cell = {"t": f"{times * row['mean']:.1f}{mark}", "v": float(row["mean"]), "s": deviation}
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
    low, high = times * row["difference_low"], times * row["difference_high"]
    spread = "" if pd.isna(low) else f"{low:+.1f} … {high:+.1f}"
    return {"t": f"{times * row['difference']:+.1f}", "v": float(row["difference"]), "s": spread}


def _interval(row: Any, metric: str | None) -> Cell:
    if pd.isna(row["low"]):
        return {"t": NOTHING}
    times, (low, high) = times_of(metric), bounds_of(metric)
    ends = times * max(row["low"], low), times * min(row["high"], high)
    return {"t": f"{ends[0]:.1f} … {ends[1]:.1f}", "v": float(row["low"])}


def _p_value(p: Any) -> Cell:
    return {"t": "< 0.001", "v": float(p)} if pd.notna(p) and p < 0.001 else _number(p, ".3f")


def _number(value: Any, form: str, times: float = 1.0) -> Cell:
    return {"t": NOTHING} if pd.isna(value) else {"t": format(times * value, form), "v": float(value)}
