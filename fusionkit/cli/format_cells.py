"""Numbers as tables show them: shares in percent, perplexities as they are, p-values with their marks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.metrics import LESS_IS_BETTER
from fusionkit.runs.comparison import COMPARED
from fusionkit.runs.summary import COLUMNS

NOTHING = "–"
MARKS = {0.001: "***", 0.01: "**", 0.05: "*"}  # the first that a p-value does not exceed


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows, by column."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict(orient="records")]


def group_keys(summary: pd.DataFrame) -> list[str]:
    """The columns of a summary that name its groups."""
    return [name for name in summary.columns if name not in (*COLUMNS, *COMPARED)]


def times_of(metric: object) -> float:
    """The factor that a score is shown with: 100 for a share, 1 for a perplexity."""
    return 1.0 if metric in LESS_IS_BETTER else 100.0


def score_text(mean: float, std: float, times: float = 100.0) -> str:
    """``74.3 ± 0.5``, in percent unless ``times`` says otherwise; a single run has no deviation."""
    return NOTHING if pd.isna(mean) else f"{times * mean:.1f}" + ("" if pd.isna(std) else f" ± {times * std:.1f}")


def range_text(low: float, high: float, times: float, signed: bool = False) -> str:
    """``73.1 … 75.5``; ``signed`` for differences."""
    form = "+.1f" if signed else ".1f"
    return NOTHING if pd.isna(low) else f"{times * low:{form}} … {times * high:{form}}"


def difference_text(row: dict[str, Any]) -> str:
    """``+1.3`` or, in the baseline's own row, that it is the one."""
    if row["is_baseline"]:
        return "baseline"
    return NOTHING if pd.isna(row["difference"]) else f"{times_of(row['metric']) * row['difference']:+.1f}"


def p_text(p: float) -> str:
    """Three digits behind the point, or that it is less."""
    return NOTHING if pd.isna(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def marks(p: float) -> str:
    """Stars of a p-value, none above 0.05."""
    return next((stars for level, stars in MARKS.items() if p <= level), "")


def record_text(row: dict[str, Any], between: str = "–") -> str:
    """Wins, ties and losses."""
    counts = [row[name] for name in ("wins", "ties", "losses")]
    return NOTHING if any(map(pd.isna, counts)) else between.join(f"{count:.0f}" for count in counts)


def cell(value: Any) -> str:
    """A value of a column that groups are named by."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return NOTHING
    return f"{value:g}" if isinstance(value, float) else str(value)
