"""A summary as a ``booktabs`` table for a paper, or as a Markdown table; scores in percent.

In both the best mean of each task and number of shots is bold, as are those that do not differ significantly from it
(:mod:`fusionkit.runs.comparison.ties`), and a score that differs significantly from the baseline has stars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fusionkit.metrics import is_share, metric_name, times_of
from fusionkit.printable import one_line, printable, spreadsheet_safe
from fusionkit.runs.comparison.ranks import BEST_RANK
from fusionkit.runs.comparison.ties import LEGEND, TIED
from fusionkit.runs.floors import MARK
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.tables.format_cells import (
    NOTHING,
    WORTH_IT,
    cell,
    chosen_columns,
    head_of,
    mark_of,
    naming_columns,
    rank_text,
    rows_of,
    runs_text,
    texts_of,
    with_unit,
)

Rows = list[tuple[dict[str, Any], bool]]
UNITS_NOTE = f"scores in percent, perplexities as they are; the CSV has fractions; {LEGEND}"


def latex(summary: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """A ``booktabs`` table with the notes as comments above; with a baseline also the paired differences. A column
    names the metrics and their units where there are several.
    """
    keys, compared = naming_columns(summary), "difference" in summary.columns
    keys += ["metric"] if len(summary["metric"].dropna().drop_duplicates()) > 1 else []
    unit = " (\\%)" if "metric" not in keys and all(map(is_share, summary["metric"])) else ""
    header = [*(_latex_escape(head_of(name, summary)) for name in keys), f"score{unit}", "95\\,\\% interval"]
    header += ["rank"] if BEST_RANK in summary else []
    selective, coded = ("selectivity" in summary.columns, "code_bits" in summary.columns)
    header += ["control", "selectivity", "95\\,\\% interval"] if selective else []
    header += ["code, kbit", "compression"] if coded else []
    header += ["difference", "95\\,\\% interval", "$p$", "W--T--L"] if compared else []
    header += ["runs", "parameters"]
    lines = [f"% {printable(' '.join(note.split()))}" for note in notes]
    lines += [f"\\begin{{tabular}}{{{'l' * len(keys)}{'r' * (len(header) - len(keys))}}}", "\\toprule"]
    lines += [" & ".join(header) + " \\\\", "\\midrule"]
    for row, bold in _rows(summary):
        texts = texts_of(row)
        numbers = [_signed(texts["interval"]), *([rank_text(row).replace("–", "--")] if BEST_RANK in row else [])]
        if selective:
            numbers += map(_signed, (texts["control"], texts["selectivity"], texts["selectivity_interval"]))
        if coded:
            numbers += [texts["code, kbit"].replace("±", "$\\pm$"), texts["compression"]]
        if compared:
            numbers += map(_signed, (texts["difference"], texts["difference_interval"]))
            record = texts["record"]
            numbers += [texts["p"].replace("<", "$<$"), record if record == NOTHING else record.replace("–", "--")]
        names = [with_unit(row[name]) if name == "metric" else cell(row[name]) for name in keys]
        cells = [*map(_latex_escape, names), _latex_score(row, texts["stars"], bold)]
        cells += [*(text.replace("…", "\\dots") for text in numbers), runs_text(row), texts["parameters"]]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def _signed(text: str) -> str:
    # Outside of math mode a hyphen is not set as a minus sign.
    return text.replace("-", "$-$").replace("+", "$+$")


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV that no terminal executes and no spreadsheet evaluates."""
    return str(frame.map(spreadsheet_safe).to_csv(index=False))


def markdown(summary: pd.DataFrame, notes: Sequence[str] = (), across: str | None = None) -> str:
    """A Markdown table with the notes below.

    Args:
        across: a column that identifies groups, or ``metric``; its values become columns of the table.
    """
    down, rows = naming_columns(summary), _rows(summary)
    keys = [name for name in down if name not in chosen_columns(summary)]
    if across is not None and across in (*keys, "metric"):
        body = _across(rows, keys, across)
    else:
        heads = [_head(name) if name == SCORED_ON else name for name in down]
        body = _down(rows, down, heads, "difference" in summary.columns)
    lines = [f"| {' | '.join(cells)} |" for cells in (body[0], ["---"] * len(body[0]), *body[1:])]
    return "\n".join([*lines, *(f"\n{_markdown_escape(note)}" for note in notes)]) + "\n"


def table_files(summary: pd.DataFrame, notes: Sequence[str], across: str | None) -> dict[str, str]:
    """The content of a summary's files, by suffix: Markdown, and the forms of ``fusionkit results --format``."""
    return {
        "md": markdown(summary, [*notes, UNITS_NOTE], across),
        "csv": csv_text(summary),
        "tex": latex(summary, notes) + "\n",
    }


def _rows(summary: pd.DataFrame) -> Rows:
    """Each row, and whether it is the best of its task or does not differ significantly from that."""
    rows = rows_of(summary)
    bold = [TIED in row and not pd.isna(row[TIED]) and bool(row[TIED]) for row in rows]
    return list(zip(rows, bold, strict=True))


def _latex_score(row: dict[str, Any], stars: str, bold: bool) -> str:
    times = times_of(row["metric"])
    text = NOTHING if pd.isna(row["mean"]) else _signed(f"{times * row['mean']:.1f}")
    text = f"\\textbf{{{text}}}" if bold else text
    text += f"$^{{{stars}}}$" if stars else ""
    text += "" if pd.isna(row["std"]) else f" $\\pm$ {times * row['std']:.1f}"
    marks = {MARK: "\\dagger", WORTH_IT: "\\blacklozenge"}
    return text + "".join(f"$^{sign}$" for mark, sign in marks.items() if mark in mark_of(row))


def _latex_escape(text: str) -> str:
    words = {"\\": "textbackslash{}", "~": "textasciitilde{}", "^": "textasciicircum{}"}
    return "".join("\\" + words.get(c, c) if c in words or c in "&%$#_{}" else c for c in one_line(text))


def _down(rows: Rows, keys: list[str], heads: list[str], compared: bool) -> list[list[str]]:
    """One line per group."""
    probing = {"selectivity": ["control", "selectivity"], "code_bits": ["code, kbit", "compression"]}
    between = {name: name for each, own in probing.items() if rows and each in rows[0][0] for name in own}
    if compared:
        between |= {"difference": "difference", "95 % interval": "difference_interval", "p": "p"}
    body = [[*heads, "metric", "score", *between, "runs", "parameters", "s alone"]]
    for row, bold in rows:
        texts = texts_of(row)
        names = [_markdown_escape(cell(row[name])) for name in (*keys, "metric")]
        costs = [runs_text(row), texts["parameters"], texts["seconds"]]
        body.append([*names, _markdown_score(row, bold), *(texts[name] for name in between.values()), *costs])
    return body


def _across(rows: Rows, keys: list[str], across: str) -> list[list[str]]:
    """One column per value of ``across``; if each has its own metric, the column's head names it."""
    scored = [row for row, _ in rows if not pd.isna(row["mean"])]
    pairs = {(cell(row[across]), cell(row["metric"])) for row in scored}
    metrics = dict(pairs)
    in_head = len(metrics) == len(pairs) and len({*metrics.values()}) > 1
    others = [name for name in (*keys, *(() if in_head else ("metric",))) if name != across]
    # Across metrics a group without a score has no column.
    shown = scored if across == "metric" and scored else [row for row, _ in rows]
    columns = list(dict.fromkeys(cell(row[across]) for row in shown))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row, bold in rows:
        told = row | _lacking(row, scored, keys, across)
        line = lines.setdefault(tuple(_name(name, told[name]) for name in others), {})
        line[cell(row[across])] = _markdown_score(row, bold)
    body = [
        [*map(_markdown_escape, names), *(found.get(name, "") for name in columns)] for names, found in lines.items()
    ]
    heads = columns
    if in_head:
        heads = [
            metric_name(name) if across == "metric" else _with_metric(name, metrics.get(name, name)) for name in columns
        ]
    return [[*map(_head, others), *map(_markdown_escape, heads)], *body]


def _lacking(row: dict[str, Any], scored: list[dict[str, Any]], keys: list[str], across: str) -> dict[str, Any]:
    """The metric and split of a group that has none, because its runs failed: those of its line, else of its column."""
    if not (missing := [name for name in ("metric", SCORED_ON) if name in row and pd.isna(row[name])]):
        return {}
    line = [name for name in keys if name not in (across, *missing)]
    alike = (
        {name: other[name] for name in missing}
        for same in (line, [across])
        for other in scored
        if all(cell(other[name]) == cell(row[name]) for name in same)
    )
    return next(alike, {})


def _with_metric(name: str, metric: str) -> str:
    # Scores of a run of several tasks begin with the task's name; one is the mean over the tasks.
    return name if metric == name else f"{name} {metric_name(metric.removeprefix(f'{name}_'))}"


def _name(column: str, value: Any) -> str:
    """A cell of the columns that identify a line; numbers of parameters have commas."""
    return f"{value:,}" if column.endswith("_parameters") and isinstance(value, int) else cell(value)


def _head(column: str) -> str:
    return column.replace("_", " ")


def _markdown_score(row: dict[str, Any], bold: bool) -> str:
    texts = texts_of(row)
    rank = f" ({rank_text(row)})" if BEST_RANK in row else ""
    return (f"**{texts['score']}**" if bold else texts["score"]) + texts["stars"].replace("*", "\\*") + rank


def _markdown_escape(text: str) -> str:
    # A name from a data set could otherwise end a cell or open a tag.
    marked = "".join(f"\\{c}" if c in "\\|*_`<>[]" else c for c in printable(text))
    return " ".join(marked.split())
