"""Selectivity: what a head scores on its task beyond what it scores on control labels (Hewitt and Liang 2019).

    selectivity = mean of (score − control score) over pairs

A pair is a run and its control run, which agree in all options and both seeds: a paired difference with its interval,
as :mod:`fusionkit.runs.pairing` makes every other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.runs.pairing import pair_runs
from fusionkit.runs.summary import AXES, SEEDS, group_columns, without_stopped
from fusionkit.statistics import INTERVALS

CONTROL = "control"
SELECTIVITY = ("control_score", "selectivity", "selectivity_low", "selectivity_high", "controls")
PAIRED_BY = [name for name in (*AXES, *SEEDS) if name != CONTROL]


def without_control(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs but those that learned control labels."""
    if CONTROL not in frame:
        return frame
    kept: pd.DataFrame = frame[~frame[CONTROL].astype(bool)]
    return kept


def with_selectivity(
    summary: pd.DataFrame,
    frame: pd.DataFrame,
    control: pd.DataFrame,
    by: list[str] | None = None,
    interval: str = "t",
    chosen: Sequence[str] = (),
    average: Sequence[str] = (),
) -> pd.DataFrame:
    """A summary with the selectivity of each group: ``control_score`` (the mean of the control runs), ``selectivity``
    with ``selectivity_low`` and ``selectivity_high`` of its 95 % interval over blocks, and ``controls``, the pairs.

    Args:
        summary: of ``frame`` by the same choices (:func:`fusionkit.runs.summary.summarise`).
        frame: the runs on the real labels. control: those on control labels; without any the summary stays as it is.
    """
    control = without_stopped(control)
    if control.empty:
        return summary
    frame = without_stopped(frame)
    keys = group_columns(frame, by, chosen, average)
    theirs = _keys(control)
    rows = []
    for _, group in frame.groupby(keys, sort=False, dropna=False):
        ours = set(_keys(group))
        twins = control[[key in ours for key in theirs]]
        pairs = pair_runs(group, twins, [CONTROL], chosen)
        low, high = INTERVALS[interval](pairs.differences)
        some = len(pairs.ours) > 0
        rows.append({
            "control_score": float(pairs.theirs.mean()) if some else np.nan,
            "selectivity": float(pairs.differences.mean()) if some else np.nan,
            "selectivity_low": low,
            "selectivity_high": high,
            "controls": len(pairs.ours),
        })  # fmt: skip
    found = pd.concat([summary, pd.DataFrame(rows, columns=list(SELECTIVITY))], axis=1)
    found.attrs |= summary.attrs
    return found


def _keys(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(frame[PAIRED_BY].astype(str).itertuples(index=False, name=None))
