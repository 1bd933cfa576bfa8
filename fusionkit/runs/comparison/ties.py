"""Which groups of a table tie with the best one: a paired test does not separate them from it."""

from __future__ import annotations

import pandas as pd

from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.statistics import LEVEL

TIED = "tied"  # a column: True for the best of a group's rivals, and for those that no test separates from it
LEGEND = f"bold: the best mean, and those that a paired test does not tell from it (p above {1 - LEVEL:.2g})"


def with_ties(table: pd.DataFrame, rivals: Rivals) -> pd.DataFrame:
    """A summary with ``tied``: whether a group is the best of its rivals, or a test does not separate it from the best.
    None without rivals, or where no test of the two is possible.
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
    return table.assign(**{TIED: pd.array(found, dtype="boolean")})
