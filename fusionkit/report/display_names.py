"""Names for readers: tasks by their data and label, methods by their fusion, scores by their metric.

A name holds only what differs within the report: where all runs share an encoder, no task names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fusionkit.fusions import FUSIONS, fusion_kind
from fusionkit.metrics import CORRELATIONS, LESS_IS_BETTER, metric_name
from fusionkit.specs import FROZEN

# Axes that define a task: runs that differ in one of these answer different questions.
TASK_AXES = ("data", "label", "evaluated", "init_data", "mix", "evaluate_on", "encoder", "task", "head", "sides")
# Axes that define a method, besides its fusion.
METHOD_AXES = ("method", "fusion_layers", "joint_fusion", "init_part", "freeze", "compute_dtype")
ALL = "all"


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs with their ``task_name``, ``method`` and ``shots_name``, which is ``8`` or ``all``."""
    shots = frame["shots"].map(lambda shots: ALL if pd.isna(shots) else f"{int(shots)}")
    return frame.assign(task_name=name_tasks(frame), method=name_methods(frame), shots_name=shots)


def of_own_stores(frame: pd.DataFrame) -> pd.Series[bool]:
    """Whether each row is of a run of several tasks over stores of their own: of one of its tasks, or of their mean."""
    return frame["task_stores"].notna()


def own_metric(row: Mapping[Any, Any]) -> str:
    """A row's metric without its task in front: ``accuracy`` for ``sst2_accuracy``."""
    return str(row["metric"]).removeprefix(f"{row['task']}_")


def name_tasks(frame: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's task: ``atis · intent``, then what separates it from other tasks of that name. Tasks over
    stores of their own are named ``sst2``, their mean ``mean``. With a column ``data_identity``, data sets of one name
    are told apart by the digest of a store.
    """
    base = frame["data"].astype(str) + " · " + frame["label"].astype(str)
    moved = frame["evaluated"].astype(str) != frame["data"].astype(str)
    base = base.where(~moved, base + " → " + frame["evaluated"].astype(str))
    apart = of_own_stores(frame)
    own = frame["task"].astype(str)
    alone = len(frame.loc[apart, "data"].drop_duplicates()) < 2
    base = base.where(~apart, own if alone else frame["data"].astype(str) + " · " + own)
    told: dict[str, Callable[[Any], str]] = {
        "encoder": str,
        "task": str,
        "head": str,
        "sides": lambda value: "two texts" if value == 2 else "one text",
        "init_data": lambda value: "afresh" if pd.isna(value) else f"from {value}",
        "mix": lambda value: "whole" if pd.isna(value) else f"mix {value}",
        "evaluate_on": lambda value: "scored alone" if pd.isna(value) else f"scored on {value}",
    }
    for name, write in told.items():
        several = frame.groupby(base)[name].transform(lambda values: values.nunique(dropna=False)) > 1
        base = base.where(~several, base + " · " + frame[name].map(write).astype(str))
    if "data_identity" not in frame:
        return base
    # Data sets may share a name, as configurations of a hub id do: validation must not choose one of them as if they
    # were settings of one task.
    several = frame.groupby(base)["data_identity"].transform("nunique") > 1
    first = frame.groupby([base, frame["data_identity"]], dropna=False)["store"].transform("first")
    return base.where(~several, base + " · store " + first.astype(str).str[:8])


def draw_of(shots: object) -> str:
    """The size of draw in a panel's title: `` · 8 a class``, empty for all examples."""
    return "" if shots == ALL else f" · {shots} a class"


def name_methods(frame: pd.DataFrame) -> pd.Series[str]:
    """The method of each run: its fusion, then the choices that differ between runs."""
    # A method that trains through the encoder is named; frozen is not.
    through = (" · " + frame["method"].astype(str)).where(frame["method"] != FROZEN, "")
    names = frame["fusion"].astype(str) + through
    for axis in METHOD_AXES[1:]:
        if len(frame[axis].drop_duplicates()) > 1:
            has = frame[axis].notna()
            if axis == "joint_fusion" and frame.loc[frame["task"] != "joint", axis].nunique() < 2:
                has &= frame["task"] == "joint"  # it does not apply to other runs
            names = names.where(~has, names + f" {axis.replace('_', ' ')} " + frame[axis].astype(str))
    return names


def family(method: str) -> str:
    """The fusion without its options: ``dwatt`` for ``dwatt:scale=yes``."""
    return fusion_kind(method.split(" ", 1)[0])


def in_order(methods: Sequence[str]) -> list[str]:
    """Methods in the order of the table of fusions, plain ones before their variants."""
    place = {name: number for number, name in enumerate(FUSIONS)}

    def key(method: str) -> tuple[int, list[int], int, str]:
        kind = family(method)
        options = method.removeprefix(kind).removeprefix(":")
        digits = [int(part) for part in options.split(",")[0].split() if part.lstrip("-").isdigit()]
        return place.get(kind, len(place)), digits, len(method), method

    return sorted(dict.fromkeys(methods), key=key)


def unit_of(metric: str | None) -> str:
    """The title of an axis: ``F1, %`` or ``perplexity``."""
    return metric_name(metric) if metric in LESS_IS_BETTER else f"{metric_name(metric)}, %"


def bounds_of(metric: str | None) -> tuple[float, float]:
    """The least and the largest value that a score can have: intervals are shown within these."""
    if metric in LESS_IS_BETTER:
        return 0.0, math.inf
    return (-1.0, 1.0) if metric in CORRELATIONS else (0.0, 1.0)
