"""Numbers as tables show them: shares in percent, perplexities unscaled, p-values with their marks."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.metrics import is_share, times_of
from fusionkit.runs.comparison.compare import COMPARED, STARS
from fusionkit.runs.comparison.pareto import COST, PARETO
from fusionkit.runs.comparison.ranks import RANKED
from fusionkit.runs.comparison.ties import TIED
from fusionkit.runs.floors import BEATS, FLOORED, MARK
from fusionkit.runs.probing import PROBED
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import CHOSEN, COLUMNS

NOTHING, WORTH_IT = "–", "◆"
THOUSANDS = 10_000  # from this number on digits are grouped


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict(orient="records")]


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame of plain values as JSON has them: NaN, infinity and other missing values become None."""
    return [
        {name: None if pd.isna(value) or value in (inf, -inf) else value for name, value in row.items()}
        for row in rows_of(frame)
    ]


def group_keys(summary: pd.DataFrame) -> list[str]:
    """The columns of a summary that identify its groups."""
    others = (*COLUMNS, *COMPARED, *FLOORED, *PROBED, TIED, PARETO, COST, *RANKED, *chosen_columns(summary))
    return [name for name in summary.columns if name not in others]


def naming_columns(summary: pd.DataFrame) -> list[str]:
    """The columns before a group's numbers: those that identify it, those that validation chose, and what it is scored
    on.
    """
    return [*group_keys(summary), *chosen_columns(summary), *({SCORED_ON} & set(summary.columns))]


def chosen_columns(summary: pd.DataFrame) -> list[str]:
    """The columns that validation chose."""
    return list(summary.attrs.get(CHOSEN, ()))


def with_unit(metric: object) -> str:
    """A metric with its unit in tables: ``accuracy, %``; a perplexity has none."""
    return NOTHING if pd.isna(metric) else str(metric) + (", %" if is_share(metric) else "")  # type: ignore[call-overload]


def head_of(column: str, summary: pd.DataFrame) -> str:
    """The head of a column that names groups; one that validation chose says so."""
    name = column.replace("_", " ") if column == SCORED_ON else column
    return f"{name} (by validation)" if column in chosen_columns(summary) else name


def score_text(mean: float, std: float = nan, times: float = 100.0) -> str:
    """``74.3 ± 0.5``, in percent unless ``times`` says otherwise; a single run has no deviation."""
    return NOTHING if pd.isna(mean) else f"{times * mean:.1f}" + ("" if pd.isna(std) else f" ± {times * std:.1f}")


def mark_of(row: dict[str, Any]) -> str:
    """The marks of a group: that it does not beat the majority, and that it beats all groups that cost less."""
    beats = row.get(BEATS)
    floored = "" if beats is None or pd.isna(beats) or beats else f" {MARK}"
    return floored + (f" {WORTH_IT}" if is_worth_it(row) else "")


def is_worth_it(row: dict[str, Any]) -> bool:
    worth = row.get(PARETO)
    return worth is not None and not pd.isna(worth) and bool(worth)


def _error_text(error: float, times: float) -> str:
    return NOTHING if pd.isna(error) else f"{times * error:.1f}"


def range_text(low: float, high: float, times: float, form: str = ".1f") -> str:
    return NOTHING if pd.isna(low) else f"{times * low:{form}} … {times * high:{form}}"


def texts_of(row: dict[str, Any]) -> dict[str, str]:
    """The cells of a group in a table, without its name; missing costs and counts are empty.

    A group that is compared with a baseline also has the differences, ``record`` (wins, ties, losses) and ``pairs``.
    """
    times = times_of(row["metric"])
    found = {
        "score": score_text(row["mean"], row["std"], times) + mark_of(row),
        "interval": range_text(row["low"], row["high"], times),
        "parameters": "" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}",
        "seconds": "" if pd.isna(row["seconds_alone"]) else f"{row['seconds_alone']:.1f}",
        "stars": "",
        "se_seeds": _error_text(row.get("se_seeds", nan), times),
        "se_examples": _error_text(row.get("se_examples", nan), times),
    }
    if "selectivity" in row:
        found |= {
            "control": score_text(row["control_score"], times=times),
            "selectivity": NOTHING if pd.isna(row["selectivity"]) else f"{times * row['selectivity']:+.1f}",
            "selectivity_interval": range_text(row["selectivity_low"], row["selectivity_high"], times, "+.1f"),
        }
    if "code_bits" in row:
        found |= {
            "code, kbit": score_text(row["code_bits"], row["code_std"], 1e-3),
            "compression": NOTHING if pd.isna(row["compression"]) else f"{row['compression']:.2f}",
        }
    if "difference" not in row:
        return found
    p, counts = row["p_corrected"], [row[name] for name in ("wins", "ties", "losses")]
    difference = NOTHING if pd.isna(row["difference"]) else f"{times * row['difference']:+.1f}"
    return found | {
        "difference": "baseline" if row["is_baseline"] else difference,
        "difference_interval": range_text(row["difference_low"], row["difference_high"], times, "+.1f"),
        "se_seeds": _error_text(row.get("difference_se_seeds", nan), times),
        "se_examples": _error_text(row.get("difference_se_examples", nan), times),
        "p": NOTHING if pd.isna(p) else "<0.001" if p < 0.001 else f"{p:.3f}",
        "stars": next((stars for level, stars in STARS.items() if p <= level), ""),
        "record": NOTHING if any(map(pd.isna, counts)) else "–".join(f"{count:.0f}" for count in counts),
        "pairs": "" if pd.isna(row["pairs"]) else f"{row['pairs']:.0f}",
    }


def rank_text(row: dict[str, Any]) -> str:
    """``2`` or ``2–4``; a group without rivals has none."""
    low, high = (row[name] for name in RANKED)
    return NOTHING if pd.isna(low) else f"{low}" if low == high else f"{low}–{high}"


def runs_text(row: dict[str, Any]) -> str:
    return f"{row['runs']}" + (f" + {row['failed']} failed" if row["failed"] else "")


def cell(value: Any) -> str:
    """The cell of a value that identifies a group."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return NOTHING
    if isinstance(value, (int, np.integer, float)) and value >= THOUSANDS and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:g}" if isinstance(value, float) else str(value)
