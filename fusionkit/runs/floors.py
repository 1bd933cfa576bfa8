"""Floors in a table of runs: which options do not apply to them, and which groups do not beat the majority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.metrics import is_clearly_better, metric_name, times_of
from fusionkit.names import FLOORS
from fusionkit.runs.note_texts import first_names, value_text
from fusionkit.runs.shown_split import SCORED_ON

MAJORITY = FLOORS[0]
FLOOR, BEATS = "majority", "beats_majority"  # columns of a summary that has floors
FLOORED = (FLOOR, BEATS)
MARK = "†"  # marks a score that is not above the majority's
CLASSES_TOLD = ("accuracy", "micro_f1")  # scores that the most frequent class alone may reach


def are_floors(frame: pd.DataFrame) -> pd.Series[bool]:
    """Which runs are floors, bool ``[runs]``."""
    return frame["fusion"].isin(FLOORS)


def without_options(frame: pd.DataFrame, free: Sequence[str]) -> pd.DataFrame:
    """The runs, with these columns emptied for floors: a majority has no learning rate."""
    floors = are_floors(frame)
    if not floors.any():
        return frame
    blank: dict[str, Any] = {name: frame[name].astype(object).where(~floors, None) for name in free if name in frame}
    return frame.assign(**blank)


def with_majority(table: pd.DataFrame, keys: Sequence[str], free: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Adds the majority's mean to each group of a summary, and whether the group beats it; also gives notes on groups
    that do not. A summary without a majority is returned as it is.

    Args:
        table: one row per group. keys: the columns that define its groups. free: the columns in which floors have no
            value.
    """
    if "fusion" not in keys or MAJORITY not in set(table["fusion"]):
        return table, []
    told = [key for key in (*keys, "metric", SCORED_ON) if key not in ("fusion", *free)]
    rows = table.to_dict(orient="records")
    floors = {_key(row, told): row["mean"] for row in rows if row["fusion"] == MAJORITY}
    beside = [floors.get(_key(row, told), np.nan) for row in rows]
    verdicts = [
        None if row["fusion"] in FLOORS else beats(str(row["metric"]), row["mean"], floor)
        for row, floor in zip(rows, beside, strict=True)
    ]
    found = table.assign(majority=beside, beats_majority=pd.array(verdicts, dtype="boolean"))
    heads = found[~are_floors(found)]
    telling = [key for key in keys if key == "fusion" or len(heads[key].drop_duplicates()) > 1]
    return found, _notes(found[[verdict is False for verdict in verdicts]], telling)


def beats(metric: str, mean: float, floor: float | None) -> bool | None:
    """Whether a mean is above the majority's; None where one of the two is missing."""
    return None if pd.isna(floor) or pd.isna(mean) else is_clearly_better(metric, mean, float(floor))


def _key(row: dict[Any, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if pd.isna(row[name]) else str(row[name]) for name in names)


def _notes(beaten: pd.DataFrame, telling: Sequence[str]) -> list[str]:
    notes = []
    for metric, rows in beaten.groupby("metric", sort=False):
        groups = rows[[*telling]].itertuples(index=False, name=None)
        names = first_names([" ".join(value_text(x) for x in values if not pd.isna(x)) for values in groups])
        score = ", ".join(f"{times_of(metric) * each:.1f}" for each in rows[FLOOR].unique())
        look = (
            f"{metric_name(str(metric))} cannot tell these heads from the most frequent class; "
            "--metric matthews and --metric macro_f1 show whether they learned anything"
            if metric in CLASSES_TOLD
            else "by this score they learned nothing"
        )
        notes.append(f"{MARK} not above the majority ({score}): {names}; {look}")
    return notes
