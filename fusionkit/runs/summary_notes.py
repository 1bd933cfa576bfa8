"""Notes on the scores and the intervals of a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fusionkit.metrics import is_share
from fusionkit.runs.errors_of_means import BOTH
from fusionkit.runs.floors import are_floors
from fusionkit.runs.shown_split import SCORED_ON, VALIDATION

GENERALISES_TO = {
    "seeds": "other seeds, on these test examples",
    "examples": "other test examples, for these runs",
    "both": "other seeds and other test examples",
}
FLATTERED = "scored on validation, which also chose the epoch: the score is optimistic"


def split_notes(summary: pd.DataFrame) -> list[str]:
    """The warning about groups whose epoch was chosen by the scores that are shown."""
    flattered = summary[SCORED_ON].dropna() == VALIDATION
    if not flattered.any():
        return []
    mixed = "some groups have no test score, and theirs do not compare with the others: they are "
    return [("" if flattered.all() else mixed) + FLATTERED]


def error_notes(summary: pd.DataFrame, over: str, average: Sequence[str] = (), of_means: bool = False) -> list[str]:
    """A note on what the intervals account for, the number of test examples and both standard errors; for crossed draws
    and init seeds also their standard deviations. ``of_means``: only the intervals of means are over ``over``.
    """
    subject = "intervals of means" if of_means else "intervals and tests"
    heads = summary[~are_floors(summary)] if "fusion" in summary else summary
    shares = heads[heads["metric"].map(is_share).astype(bool)]  # without rows the mask would not be bool
    these = ", and of these data sets alone" if {"data", "evaluated"} & {*average} else ""
    notes = [f"{subject} generalise to {GENERALISES_TO[over]}{these}"] if summary["low"].notna().any() else []
    if over == BOTH and (heads["se_seeds"].isna() & heads["se_examples"].notna()).any():
        notes.append("tests of a group with one seed generalise to other test examples only")
    if (sizes := heads["test_examples"].dropna()).size:
        among = _range(sizes, "{:,.0f}")
        told = [
            f"{_range(100 * shares[name].dropna(), '{:.1f}')} over {what}"
            for name, what in (("se_seeds", "seeds"), ("se_examples", "test examples"))
            if shares[name].notna().any()
        ]
        notes.append(f"{among} test examples" + (f"; standard errors {', '.join(told)}" if told else ""))
    if (crossed := shares[shares["std_draws"].notna()]).size:
        parts = (("std_draws", "draws"), ("std_inits", "init seeds"), ("std_rest", "the rest"))
        of = (f"{what} {_range(100 * crossed[name], '{:.1f}')}" for name, what in parts)
        notes.append(f"draws and init seeds are crossed; standard deviations of {', '.join(of)}")
    return ["; ".join(notes)] if notes else []


def _range(values: pd.Series[Any], form: str) -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low} to {high}"
