"""A summary of runs as a table for the terminal."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.table import Table

from fusionkit.cli.console import out, table
from fusionkit.runs.comparison.compare import HOW
from fusionkit.runs.comparison.pairing import DATA
from fusionkit.runs.comparison.pareto import COST, PARETO
from fusionkit.runs.comparison.ranks import BEST_RANK
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import OVER
from fusionkit.runs.tables.format_cells import (
    NOTHING,
    cell,
    head_of,
    naming_columns,
    rank_text,
    rows_of,
    runs_text,
    texts_of,
    with_unit,
)

PERCENT, RANGE, SELECTIVE = "95 % interval", "95 % of Δ", "95 % of selectivity"
# What is left out first on a narrow terminal: costs, then naming columns, then what other columns imply.
ERRORS = ("SE seeds", "SE examples")  # of the mean, or of the difference if there is one
COSTS, READ_OFF = ("s alone", "parameters"), ("pairs", "W–T–L", PERCENT, *ERRORS, RANGE)
SHOWN_COSTS = ("seconds_alone", "trained_parameters")  # costs that are shown without --pareto too
KEPT = ("method", "fusion", "label", "data", "scored on")
OVER_WORDS = {"seeds": "seeds", "examples": "examples", "both": "seeds and examples"}
SAID = (SCORED_ON, "metric")  # above the table even if it has a single row


def summary_table(summary: pd.DataFrame) -> Table:
    """A summary for the terminal, scores in percent, perplexities unscaled; values that all rows share are printed
    above it.

    If the terminal is too narrow, the least important columns are left out, and a caption names them.
    """
    keys = naming_columns(summary)
    same = [name for name in (*keys, "metric") if len(summary[name].drop_duplicates()) == 1]
    shared = [name for name in same if name in SAID or (name != "fusion" and len(summary) > 1)]
    shown = [name for name in (*keys, "metric") if name not in shared]
    header = [(head_of(name, summary), "left") for name in shown]
    rows: list[list[str]] = []
    for row in rows_of(summary):
        numbers = _numbers(row)
        if (cost := summary.attrs.get(PARETO)) and cost not in SHOWN_COSTS:
            numbers[cost.replace("_", " ")] = NOTHING if pd.isna(row[COST]) else f"{row[COST]:,.0f}"
        rows.append([*(_cell(name, row[name]) for name in shown), *numbers.values()])
        if len(rows) == 1:
            header += [(name, "right") for name in numbers]
    told = [f"{head_of(name, summary)} {_cell(name, summary[name].iloc[0])}" for name in shared]
    if summary["low"].notna().any() and OVER in summary.attrs:
        words = OVER_WORDS[summary.attrs[OVER]]
        if summary.attrs.get(HOW, {}).get("block") == DATA:
            told.append(f"intervals over {words}, Δ and p over data sets")
        else:
            told.append(f"intervals{', p' if 'p' in summary else ''} over {words}")
    title = " · ".join(told)
    return _fitting(title or None, header, rows, len(shown))


def _cell(name: str, value: Any) -> str:
    return with_unit(value) if name == "metric" else cell(value)


def _numbers(row: dict[str, Any]) -> dict[str, str]:
    texts = texts_of(row)
    errors = dict(zip(ERRORS, (texts["se_seeds"], texts["se_examples"]), strict=True))
    found = {"mean ± std": texts["score"], PERCENT: texts["interval"]}
    if BEST_RANK in row:
        found["rank"] = rank_text(row)
    if "selectivity" in texts:
        found |= {
            "control": texts["control"],
            "selectivity": texts["selectivity"],
            SELECTIVE: texts["selectivity_interval"],
        }
    if "compression" in texts:
        found |= {"code, kbit": texts["code, kbit"], "compression": texts["compression"]}
    if "difference" in texts:
        found |= {"Δ": texts["difference"], RANGE: texts["difference_interval"]}
        found |= errors | {"p": texts["p"] + texts["stars"]}
        found |= {"W–T–L": texts["record"], "pairs": texts["pairs"] or NOTHING}
    else:
        found |= errors
    costs = {"parameters": texts["parameters"] or NOTHING, "s alone": texts["seconds"] or NOTHING}
    return found | {"runs": runs_text(row)} | costs


def _fitting(title: str | None, header: list[tuple[str, str]], rows: list[list[str]], naming: int) -> Table:
    """A table at most as wide as the terminal; the first ``naming`` columns identify a row's group."""
    console, left_out = out(), []
    unbounded = console.options.update(max_width=100_000)
    # Training options, at the right, matter less than columns at the left; the metric is left out last.
    least = sorted((name for name, _ in reversed(header[:naming])), key=lambda name: name == "metric")
    for name in (*COSTS, *(name for name in least if name not in KEPT), *READ_OFF):
        if console.measure(table(None, header, rows), options=unbounded).maximum <= console.width:
            break
        place = next((place for place, (head, _) in enumerate(header) if head == name), len(header))
        shorter = [row[:place] + row[place + 1 :] for row in rows]
        if place < naming:
            if len({*map(tuple, (row[: naming - 1] for row in shorter))}) < len(rows):
                continue  # without it two groups would have the same name
            naming -= 1
        if place < len(header):
            header, rows = header[:place] + header[place + 1 :], shorter
            left_out.append(name)
    made = table(title, header, rows)
    if left_out:
        made.caption, made.caption_justify = f"left out for width: {', '.join(left_out)} (--format csv has all)", "left"
    return made
