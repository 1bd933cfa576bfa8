"""A summary as a Markdown table, scores in percent; one of its columns may lie across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fusionkit.cli.format_cells import cell, difference_text, group_keys, marks, p_text, rows_of, score_text, times_of
from fusionkit.cli.latex import best_rows


def markdown(summary: pd.DataFrame, notes: Sequence[str] = (), across: str | None = None) -> str:
    """The best mean of each task in bold; with a baseline stars for significant differences, or a column of them.

    Args:
        across: a column that groups are named by; its values become columns of the table.
    """
    keys = group_keys(summary)
    rows = list(zip(rows_of(summary), best_rows(summary), strict=True))
    body = _across(rows, keys, across) if across in keys else _down(rows, keys, "difference" in summary.columns)
    lines = [_line(row) for row in (body[0], ["---"] * len(body[0]), *body[1:])]
    return "\n".join([*lines, *(f"\n{_escape(note)}" for note in notes)]) + "\n"


def _down(rows: list[tuple[dict[str, Any], bool]], keys: list[str], compared: bool) -> list[list[str]]:
    """A group a line."""
    head = [*keys, "metric", "score", *(["difference", "p"] if compared else []), "runs", "parameters", "s/run"]
    body = []
    for row, bold in rows:
        line = [_escape(cell(row[name])) for name in keys] + [cell(row["metric"]), _score(row, bold)]
        line += [difference_text(row), p_text(row["p_corrected"])] if compared else []
        line += [f"{row['runs']}" + (f" + {row['failed']} failed" if row["failed"] else "")]
        line += ["" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}"]
        line += ["" if pd.isna(row["seconds"]) else f"{row['seconds']:.1f}"]
        body.append(line)
    return [head, *body]


def _across(rows: list[tuple[dict[str, Any], bool]], keys: list[str], across: str | None) -> list[list[str]]:
    """A column for each value of ``across``."""
    others = [name for name in (*keys, "metric") if name != across]
    columns = list(dict.fromkeys(cell(row[str(across)]) for row, _ in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row, bold in rows:
        line = lines.setdefault(tuple(cell(row[name]) for name in others), {})
        line[cell(row[str(across)])] = _score(row, bold)
    body = [[*map(_escape, names), *(found.get(name, "") for name in columns)] for names, found in lines.items()]
    return [[*others, *map(_escape, columns)], *body]


def _score(row: dict[str, Any], bold: bool) -> str:
    text = score_text(row["mean"], row["std"], times_of(row["metric"]))
    stars = marks(row["p_corrected"]).replace("*", "\\*") if "p_corrected" in row else ""
    return (f"**{text}**" if bold else text) + stars


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    # A name from a data set could otherwise end a cell or open a tag.
    marked = "".join(f"\\{c}" if c in "\\|*_`<>[]" else c for c in text)
    return " ".join(marked.split())
