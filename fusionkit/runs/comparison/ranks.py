"""Ranges of ranks of groups: a group ranks before another only if a paired test finds it better."""

from __future__ import annotations

import pandas as pd

from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.statistics import LEVEL

BEST_RANK, WORST_RANK = "best_rank", "worst_rank"
RANKED = (BEST_RANK, WORST_RANK)  # columns
LEGEND = (
    f"a rank of 2–4 among six groups would say: one group is better by a paired test (p at most {1 - LEVEL:.2g}, not "
    "corrected), two are worse, two do not differ significantly"
)


def with_ranks(table: pd.DataFrame, rivals: Rivals) -> pd.DataFrame:
    """A summary with ``best_rank``, 1 + the number of rivals that are better by a test, and ``worst_rank``, the number
    of rivals, itself included, minus those that it is better than by a test. Both are None without rivals. Groups whose
    runs do not pair count as not separated.
    """
    best: list[int | None] = [None] * len(table)
    worst = list(best)
    for places in rivals.contests:
        for place in places if len(places) > 1 else ():
            told = [other for other in places if other != place and rivals.differ(place, other)]
            beaten = sum(rivals.is_better(place, other) for other in told)
            best[place], worst[place] = 1 + len(told) - beaten, len(places) - beaten
    return table.assign(best_rank=pd.Series(best, dtype="Int64"), worst_rank=pd.Series(worst, dtype="Int64"))
