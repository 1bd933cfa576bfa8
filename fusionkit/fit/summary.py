"""Runs in groups: mean, standard deviation and the 95 % t-interval of the mean."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from fusionkit.errors import unknown_name

# What tells runs of one sweep apart, in the order a table shows it. Seeds are what is averaged over.
AXES = (
    "data", "evaluated", "init_data", "encoder", "rows", "sides", "store", "mix", "evaluate_on",
    "pool", "task", "label", "fusion", "fusion_layers", "head", "shots", "draw", "epochs",
    "batch_size", "optimizer", "lr", "schedule", "warmup", "weight_decay", "clip_norm", "dropout", "label_smoothing",
    "class_weights", "patience", "joint_fusion", "init_part", "freeze", "validate_on", "init_from", "draw_ids",
)  # fmt: skip
COLUMNS = ("metric", "runs", "failed", "mean", "std", "low", "high", "validation", "parameters", "seconds")


def summarise(frame: pd.DataFrame, by: list[str] | None = None) -> pd.DataFrame:
    """One row a group.

    Args:
        frame: one row a run, as :meth:`fusionkit.fit.results.RunsFolder.frame` gives it.
        by: columns to group by; None is the fusion and every axis on which the runs differ.

    Returns:
        the group's columns, then ``metric``, ``runs`` and ``failed``, ``mean`` and ``std`` (n - 1) of the test
        score (validation's where there is no test), ``low`` and ``high`` of the 95 % t-interval of the mean,
        mean ``validation`` score, learned ``parameters``, mean ``seconds``. One run has no ``std``.

    Raises:
        UsageError: a column that does not exist.
    """
    for name in by or []:
        if name not in frame.columns:
            raise unknown_name("column of the results", name, frame.columns)
    differ = {name for name in AXES if len(frame[name].drop_duplicates()) > 1}
    # Digests are shown only where nothing legible tells the stores, or the runs that these began from, apart.
    stores = frame.groupby(["data", "evaluated", "encoder", "rows", "sides"])[["store", "mix", "evaluate_on"]]
    if stores.nunique().to_numpy().max() <= 1:
        differ -= {"store", "mix", "evaluate_on"}
    if not frame.duplicated([name for name in [*AXES, "data_seed", "init_seed"] if name != "init_from"]).any():
        differ -= {"init_from"}
    if not frame.duplicated([name for name in [*AXES, "data_seed", "init_seed"] if name != "draw_ids"]).any():
        differ -= {"draw_ids"}  # of each data seed another draw, as ever
    if (frame["evaluated"] == frame["data"]).all():
        differ -= {"evaluated"}
    keys = by or [name for name in AXES if name in differ or name in ("task", "label", "fusion")]
    rows = []
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        rows.append(_group(group) | dict(zip(keys, values, strict=True)))
    return pd.DataFrame(rows, columns=list(dict.fromkeys([*keys, *COLUMNS])))


def _group(group: pd.DataFrame) -> dict[str, object]:
    good = group[group["status"] == "finished"]
    scores = good["score"].where(good["score"].notna(), good["validation_score"]).to_numpy(dtype=float)
    n = len(scores)
    mean = float(np.mean(scores)) if n else np.nan
    std = float(np.std(scores, ddof=1)) if n > 1 else np.nan
    half = float(stats.t.ppf(0.975, n - 1)) * std / np.sqrt(n) if n > 1 else np.nan
    metrics = good["metric"].unique()
    return {
        "metric": metrics[0] if len(metrics) == 1 else "mixed" if n else None,
        "runs": n,
        "failed": len(group) - n,
        "mean": mean,
        "std": std,
        "low": mean - half,
        "high": mean + half,
        "validation": float(good["validation_score"].astype(float).mean()) if n else np.nan,
        "parameters": float(_learned(good).mean()) if n else np.nan,
        "seconds": float(good["seconds"].astype(float).mean()) if n else np.nan,
    }


def _learned(good: pd.DataFrame) -> pd.Series[float]:
    """The parameters that each run trained: all of fusion and head where nothing is said about frozen ones."""
    every = (good["fusion_parameters"] + good["head_parameters"]).astype(float)
    if "trained_parameters" not in good.columns:
        return every
    return good["trained_parameters"].astype(float).fillna(every)
