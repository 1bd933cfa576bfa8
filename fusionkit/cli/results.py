"""``fusionkit results``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.table import Table

from fusionkit.cli.console import FOLDER, out, print_json, table
from fusionkit.fit.results import RunsFolder
from fusionkit.fit.summary import COLUMNS, summarise
from fusionkit.metrics import LESS_IS_BETTER

FORMATS = ("table", "csv", "json", "latex")


@click.command()
@click.argument("runs", type=FOLDER)
@click.option("--by", multiple=True, help="Column to group by; give it several times. [default: what differs]")
@click.option("--metric", help="Score to show, e.g. macro_f1, matthews, recall. [default: the task's own]")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def results(runs: Path, by: tuple[str, ...], metric: str | None, kind: str, as_json: bool) -> None:
    """Mean, standard deviation and 95 % interval of the runs in RUNS, group by group."""
    summary = summarise(RunsFolder(runs).frame(metric, each_test=True), list(by) or None)
    if as_json or kind == "json":
        print_json(json.loads(summary.to_json(orient="records")))
    elif kind == "csv":
        click.echo(summary.to_csv(index=False), nl=False)
    elif kind == "latex":
        click.echo(latex(summary))
    else:
        out().print(summary_table(summary))


def summary_table(summary: pd.DataFrame) -> Table:
    """A summary for the terminal, scores in percent, perplexities as they are; what all rows share stands above it."""
    keys = [name for name in summary.columns if name not in COLUMNS]
    shared = [name for name in (*keys, "metric") if name != "fusion" and len(summary) > 1 and _constant(summary[name])]
    shown = [name for name in (*keys, "metric") if name not in shared]
    header = [(name, "left") for name in shown]
    header += [(name, "right") for name in ("mean ± std", "95 % interval", "runs", "parameters", "s/run")]
    rows = []
    for row in summary.to_dict(orient="records"):
        runs = f"{row['runs']}" + (f" + {row['failed']} failed" if row["failed"] else "")
        times = _times(row["metric"])
        interval = "–" if pd.isna(row["low"]) else f"{times * row['low']:.1f} … {times * row['high']:.1f}"
        parameters = "–" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}"
        seconds = "–" if pd.isna(row["seconds"]) else f"{row['seconds']:.1f}"
        cells = [_cell(row[name]) for name in shown]
        rows.append([*cells, score_text(row["mean"], row["std"], times), interval, runs, parameters, seconds])
    title = " · ".join(f"{name} {_cell(summary[name].iloc[0])}" for name in shared)
    return table(title or None, header, rows)


def _constant(column: pd.Series[Any]) -> bool:
    return len(column.drop_duplicates()) == 1


def _times(metric: object) -> float:
    """What a score is shown times: a share in percent, a perplexity as it is."""
    return 1.0 if metric in LESS_IS_BETTER else 100.0


def score_text(mean: float, std: float, times: float = 100.0) -> str:
    """``74.3 ± 0.5``, in percent unless ``times`` says otherwise; a single run has no deviation."""
    return "–" if pd.isna(mean) else f"{times * mean:.1f}" + ("" if pd.isna(std) else f" ± {times * std:.1f}")


def latex(summary: pd.DataFrame) -> str:
    """A ``booktabs`` table with scores in percent, the best mean of each task in bold."""
    keys = [name for name in summary.columns if name not in COLUMNS]
    same_task = summary[[name for name in ("data", "task", "label") if name in keys]].astype(str).agg("/".join, axis=1)
    # Of the less that is better the largest negative is the best.
    rank = summary["mean"].where(~summary["metric"].isin(LESS_IS_BETTER), -summary["mean"])
    best = rank.groupby(same_task).transform("max") == rank
    lines = [f"\\begin{{tabular}}{{{'l' * len(keys)}rr}}", "\\toprule"]
    lines += [" & ".join([*map(_escape, keys), "score", "parameters"]) + " \\\\", "\\midrule"]
    for row, bold in zip(summary.to_dict(orient="records"), best, strict=True):
        times = _times(row["metric"])
        score = score_text(row["mean"], float("nan"), times)
        score = f"\\textbf{{{score}}}" if bold else score
        score += "" if pd.isna(row["std"]) else f" $\\pm$ {times * row['std']:.1f}"
        parameters = "" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}"
        cells = [_escape(_cell(row[name])) for name in keys]
        lines.append(" & ".join([*cells, score, parameters]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escape(text: str) -> str:
    words = {"\\": "textbackslash{}", "~": "textasciitilde{}", "^": "textasciicircum{}"}
    return "".join("\\" + words.get(c, c) if c in words or c in "&%$#_{}" else c for c in text)
