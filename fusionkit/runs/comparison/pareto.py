"""Which groups of a table are worth their cost: better than everything that costs less."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.names import COSTS
from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.runs.floors import are_floors
from fusionkit.runs.summary import learned_parameters
from fusionkit.statistics import LEVEL

PARETO, COST = "pareto", "pareto_cost"  # columns: whether a group is worth its cost; the mean cost of its runs
LEGEND = (
    f"◆: better than every group with less {{}}, each by a paired test (p at most {1 - LEVEL:.2g}); "
    "the cheapest group has it without a test"
)


def with_pareto(table: pd.DataFrame, rivals: Rivals, cost: str) -> pd.DataFrame:
    """A summary with ``pareto`` and ``pareto_cost``, the mean of one of :data:`fusionkit.names.COSTS` over a group's
    runs.

    A group has the mark if it is better than each rival that costs less, and no rival of the same cost is better than
    it; both by paired tests. All of these tests must pass, so none is corrected (an intersection-union test). The
    cheapest group has the mark without a test, a floor never has it. The mark is None where a deciding test has no
    pairs.

    Raises:
        UsageError: no group has this cost.
    """
    prices = [_mean_cost(runs, cost) for runs in rivals.groups.runs]
    if not np.isfinite(prices).any():
        raise UsageError(
            f"no run tells its {cost}",
            expected=f"one of {', '.join(COSTS)} that these runs have",
            received=cost,
            remedy="choose another cost",
        )
    found: list[bool | None] = [None] * len(table)
    for places in rivals.contests:
        priced = [place for place in places if np.isfinite(prices[place])]
        for place in priced if len(priced) > 1 else ():
            found[place] = _is_worth_it(place, priced, prices, rivals)
    columns = {COST: pd.Series(prices), PARETO: pd.Series(found, dtype="boolean")}
    whole = table.assign(**columns)
    whole.attrs[PARETO] = cost
    return whole


def _is_worth_it(place: int, others: list[int], prices: list[float], rivals: Rivals) -> bool | None:
    cheaper = [other for other in others if prices[other] < prices[place]]
    if not all(rivals.is_better(place, other) for other in cheaper):
        return False
    better = [other for other in others if prices[other] == prices[place] and rivals.is_better(other, place)]
    verdicts = [rivals.differ(place, other) for other in cheaper]
    verdicts += [None if (differ := rivals.differ(place, other)) is None else not differ for other in better]
    return False if False in verdicts else None if None in verdicts else True


def _mean_cost(runs: pd.DataFrame, cost: str) -> float:
    good = runs[runs["status"] == "finished"]
    if cost not in good or good.empty or are_floors(good).all():
        return np.nan
    values = learned_parameters(good) if cost == "trained_parameters" else good[cost].astype(float)
    return float(values.mean())
