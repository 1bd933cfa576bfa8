"""Which groups of a table cannot be told from the best one: an ordering that does not hold is a tie."""

from __future__ import annotations

import pandas as pd

from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.statistics import LEVEL

TIED = "tied"  # a column: True of the best group of its rivals, and of those that are not told from it
LEGEND = f"bold: the best mean, and those that a paired test does not tell from it (p above {1 - LEVEL:.2g})"


def with_ties(table: pd.DataFrame, rivals: Rivals) -> pd.DataFrame:
    """A summary with ``tied``: whether a group is the best of its rivals, or not told from it; none where nothing
    competes, or no test of the two is possible.
    """
    found: list[bool | None] = [None] * len(table)
    for places in rivals.contests:
        if len(places) < 2:
            continue
        best = places[0]
        for place in places[1:]:
            best = place if rivals.is_better(place, best) else best
        for place in places:
            differ = None if place == best else rivals.differ(place, best)
            found[place] = None if differ is None else not differ
        found[best] = True if any(found[place] is not None for place in places) else None
    whole = table.assign(**{TIED: pd.array(found, dtype="boolean")})
    whole.attrs |= table.attrs
    return whole
