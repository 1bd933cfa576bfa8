"""A summary as a ``booktabs`` table for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fusionkit.cli.format_cells import (
    cell,
    difference_text,
    group_keys,
    marks,
    p_text,
    range_text,
    record_text,
    rows_of,
    times_of,
)
from fusionkit.metrics import is_better

SAME_TASK = (
    "sweep",
    "data",
    "evaluated",
    "task",
    "label",
    "metric",
    "shots",
)  # rows that agree in these compete for the bold


def latex(summary: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """Scores in percent, the best mean of each task and number of shots in bold; notes as comments above.

    A table with a baseline carries the paired difference, its interval, the corrected p-value and wins, ties and
    losses; a score that differs significantly has stars.
    """
    keys, compared = group_keys(summary), "difference" in summary.columns
    header = [*map(_escape, keys), "score", "95\\,\\% interval"]
    header += ["difference", "95\\,\\% interval", "$p$", "W--T--L"] if compared else []
    header += ["runs", "parameters"]
    lines = [f"% {' '.join(note.split())}" for note in notes]
    lines += [f"\\begin{{tabular}}{{{'l' * len(keys)}{'r' * (len(header) - len(keys))}}}", "\\toprule"]
    lines += [" & ".join(header) + " \\\\", "\\midrule"]
    for row, bold in zip(rows_of(summary), best_rows(summary), strict=True):
        cells = [_escape(cell(row[name])) for name in keys]
        times = times_of(row["metric"])
        cells += [_score(row, bold, compared), _dashes(range_text(row["low"], row["high"], times))]
        if compared:
            between = range_text(row["difference_low"], row["difference_high"], times, signed=True)
            cells += [_signs(difference_text(row)), _signs(_dashes(between))]
            cells += [p_text(row["p_corrected"]).replace("<", "$<$"), record_text(row, "--")]
        parameters = "" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}"
        lines.append(" & ".join([*cells, f"{row['runs']}", parameters]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def best_rows(summary: pd.DataFrame) -> list[bool]:
    """Whether each row has the best mean of its task; of a perplexity the least is the best."""
    names = [name for name in SAME_TASK if name in summary.columns]
    tasks = [tuple(map(cell, values)) for values in summary[names].itertuples(index=False, name=None)]
    best: dict[tuple[str, ...], float] = {}
    rows = list(zip(tasks, summary["metric"], summary["mean"], strict=True))
    for task, metric, mean in rows:
        if not pd.isna(mean) and (task not in best or is_better(metric, mean, best[task])):
            best[task] = mean
    return [task in best and mean == best[task] for task, _, mean in rows]


def _score(row: dict[str, Any], bold: bool, compared: bool) -> str:
    times = times_of(row["metric"])
    text = "–" if pd.isna(row["mean"]) else f"{times * row['mean']:.1f}"
    text = f"\\textbf{{{text}}}" if bold else text
    stars = marks(row["p_corrected"]) if compared else ""
    text += f"$^{{{stars}}}$" if stars else ""
    return text + ("" if pd.isna(row["std"]) else f" $\\pm$ {times * row['std']:.1f}")


def _dashes(text: str) -> str:
    return text.replace("…", "\\dots")


def _signs(text: str) -> str:
    # A hyphen is no minus sign outside of mathematics.
    return text.replace("-", "$-$").replace("+", "$+$")


def _escape(text: str) -> str:
    words = {"\\": "textbackslash{}", "~": "textasciitilde{}", "^": "textasciicircum{}"}
    return "".join("\\" + words.get(c, c) if c in words or c in "&%$#_{}" else c for c in text)
