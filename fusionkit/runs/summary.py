"""Runs in groups: mean, standard deviation and the 95 % interval of the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.errors import unknown_name
from fusionkit.options.entry import options_of
from fusionkit.specs import RunSpec
from fusionkit.statistics import INTERVALS

# Of a run: what is averaged over, and digests, which say little to a reader.
SEEDS, DIGESTS = ("data_seed", "init_seed"), ("store", "mix", "evaluate_on", "init_from", "draw_ids")
# What tells runs of one sweep apart, in the order a table shows it.
AXES = (
    "data", "evaluated", "init_data", "encoder", "rows", "sides", *DIGESTS[:3],
    *(name for name in options_of(RunSpec) if name not in (*SEEDS, *DIGESTS)),
    *DIGESTS[3:],
)  # fmt: skip
CHOSEN = "chosen"  # of a summary's attrs: its columns that validation chose
COLUMNS = ("metric", "runs", "failed", "mean", "std", "low", "high", "validation", "parameters", "seconds_alone")


def summarise(
    frame: pd.DataFrame, by: list[str] | None = None, interval: str = "t", chosen: Sequence[str] = ()
) -> pd.DataFrame:
    """One row a group; runs that were stopped early are left out.

    Args:
        frame: one row a run, as :meth:`fusionkit.runs.folder.RunsFolder.frame` gives it.
        by: columns to group by; None is the fusion and every axis on which the runs differ.
        interval: ``t`` or ``bootstrap``. chosen: columns that validation chose (:mod:`fusionkit.runs.choice`): they
            are shown and make no groups.

    Returns:
        the group's columns and the chosen ones, then ``metric``, ``runs`` and ``failed``, ``mean`` and ``std`` (n - 1)
        of the test score (validation's where there is no test), ``low`` and ``high`` of the 95 % interval of the mean,
        mean ``validation`` score, learned ``parameters``, mean ``seconds_alone``. One run has no ``std``.
        UsageError for a column or an interval that does not exist.
    """
    if interval not in INTERVALS:
        raise unknown_name("interval", interval, INTERVALS)
    frame = without_stopped(frame)
    keys = group_columns(frame, by, chosen)
    shown = [name for name in chosen if name not in keys]
    rows = []
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        found = {name: _value_of(group[name]) for name in shown}
        rows.append(_group(group, interval) | dict(zip(keys, values, strict=True)) | found)
    summary = pd.DataFrame(rows, columns=list(dict.fromkeys([*keys, *shown, *COLUMNS])))
    summary.attrs[CHOSEN] = shown
    return summary


def without_stopped(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs but those that ``fit --halving`` stopped early: they have no test score, and they did not fail."""
    kept: pd.DataFrame = frame[frame["status"] != "stopped"]
    return kept


def _value_of(values: pd.Series[Any]) -> object:
    """The value that all runs of a group have, or the several that they have as a text."""
    found = values.drop_duplicates().tolist()
    texts = (f"{each:g}" if isinstance(each, float) else str(each) for each in found)
    return found[0] if len(found) == 1 else ", ".join(texts)


def group_columns(frame: pd.DataFrame, by: list[str] | None = None, chosen: Sequence[str] = ()) -> list[str]:
    """The columns that tell the groups apart: ``by``, or else the fusion and every axis on which the runs differ, but
    the ``chosen`` ones.
    """
    for name in by or []:
        if name not in frame.columns:
            raise unknown_name("column of the results", name, frame.columns)
    if by:
        return list(dict.fromkeys(by))
    differ = {name for name in AXES if name not in chosen and len(frame[name].drop_duplicates()) > 1}
    # Digests are shown only where nothing legible tells the stores, or the runs that these began from, apart.
    stores = frame.groupby(["data", "evaluated", "encoder", "rows", "sides"])[["store", "mix", "evaluate_on"]]
    if stores.nunique().to_numpy().max() <= 1:
        differ -= {"store", "mix", "evaluate_on"}
    if not frame.duplicated([name for name in [*AXES, *SEEDS] if name != "init_from"]).any():
        differ -= {"init_from"}
    if not frame.duplicated([name for name in [*AXES, *SEEDS] if name != "draw_ids"]).any():
        differ -= {"draw_ids"}  # of each data seed another draw, as ever
    if (frame["evaluated"] == frame["data"]).all():
        differ -= {"evaluated"}
    return [name for name in AXES if name in differ or name in ("task", "label", "fusion")]


def scores_of(runs: pd.DataFrame) -> NDArray[np.float64]:
    """The score that counts of each run: on test, or on validation where there is no test."""
    return runs["score"].where(runs["score"].notna(), runs["validation_score"]).to_numpy(dtype=np.float64)


def _group(group: pd.DataFrame, interval: str) -> dict[str, object]:
    good = group[group["status"] == "finished"]
    scores = scores_of(good)
    n = len(scores)
    mean = float(np.mean(scores)) if n else np.nan
    std = float(np.std(scores, ddof=1)) if n > 1 else np.nan
    low, high = INTERVALS[interval](scores)
    metrics = good["metric"].unique()
    # Where nothing is said about frozen parameters, all of fusion and head are trained.
    every = (good["fusion_parameters"] + good["head_parameters"]).astype(float)
    learned = good["trained_parameters"].astype(float).fillna(every) if "trained_parameters" in good else every
    return {
        "metric": metrics[0] if len(metrics) == 1 else "mixed" if n else None,
        "runs": n,
        "failed": len(group) - n,
        "mean": mean,
        "std": std,
        "low": low,
        "high": high,
        "validation": float(good["validation_score"].astype(float).mean()) if n else np.nan,
        "parameters": float(learned.mean()) if n else np.nan,
        "seconds_alone": float(good["seconds_alone"].astype(float).mean()) if n else np.nan,
    }
