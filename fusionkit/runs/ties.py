"""Which groups of a table cannot be told from the best one: an ordering that does not hold is a tie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.metrics import is_better
from fusionkit.runs.errors_of_differences import error_of_difference
from fusionkit.runs.errors_of_means import SEEDS
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.pairing import pair_runs
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import OVER, group_columns, prepared
from fusionkit.statistics import LEVEL

TIED = "tied"  # a column: True of the best group of its rivals, and of those that are not told from it
SAME_TASK = ("sweep", "data", "evaluated", "task", "label", "metric", SCORED_ON, "shots")  # of rivals
LEGEND = f"bold: the best mean, and those that a paired test does not tell from it (p above {1 - LEVEL:.2g})"


def with_ties(
    table: pd.DataFrame,
    frame: pd.DataFrame,
    by: list[str] | None = None,
    chosen: Sequence[str] = (),
    average: Sequence[str] = (),
    answers: ExampleScores | None = None,
    same: Sequence[str] = SAME_TASK,
) -> pd.DataFrame:
    """A summary with ``tied``: whether a group is the best of its rivals, or not told from it by a paired test over
    what the summary's intervals are over, not corrected; none where nothing competes, or no runs pair.

    Args:
        table: of ``frame`` by the same choices (:func:`fusionkit.runs.summary.summarise`). same: columns that rivals
            agree in.
    """
    frame = prepared(frame, average)
    keys = group_columns(frame, by, chosen, average)
    groups = [group for _, group in frame.groupby(keys, sort=False, dropna=False)]
    names = [name for name in same if name in table]
    rivals: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, values in enumerate(table[names].astype(str).itertuples(index=False, name=None)):
        rivals[values].append(place)
    means, metrics = table["mean"].to_numpy(dtype=np.float64), table["metric"].tolist()
    found: list[bool | None] = [None] * len(table)
    for places in rivals.values():
        scored = [place for place in places if np.isfinite(means[place])]
        if len(scored) < 2:
            continue
        best = scored[0]
        for place in scored[1:]:
            best = place if is_better(str(metrics[best]), means[place], means[best]) else best
        found[best] = True
        for place in scored:
            if place != best:
                found[place] = _is_tied(groups[place], groups[best], keys, chosen, str(table.attrs[OVER]), answers)
    whole = table.assign(**{TIED: pd.array(found, dtype="boolean")})
    whole.attrs |= table.attrs
    return whole


def _is_tied(
    ours: pd.DataFrame,
    best: pd.DataFrame,
    keys: list[str],
    chosen: Sequence[str],
    over: str,
    answers: ExampleScores | None,
) -> bool | None:
    pairs = pair_runs(ours, best, keys, chosen)
    if not len(pairs.ours):
        return None
    errors = error_of_difference(pairs, answers)
    p = errors.p_value(float(np.mean(pairs.differences)), over if errors.test_examples else SEEDS)
    return None if np.isnan(p) else bool(p > 1 - LEVEL)
