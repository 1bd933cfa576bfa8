"""Groups of a table that compete, and paired tests of two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.metrics import is_clearly_better
from fusionkit.runs.comparison.errors_of_differences import error_of_difference
from fusionkit.runs.comparison.pairing import DATA, pair_runs, sides_of
from fusionkit.runs.errors_of_means import BOTH, EXAMPLES, SEEDS
from fusionkit.runs.record import IDENTITY
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import OVER, RunGroups
from fusionkit.statistics import LEVEL

SAME_TASK = ("sweep", "data", "evaluated", "task", "label", "metric", SCORED_ON, "shots")  # equal in rivals


class Rivals:
    """The groups of a summary, by their row numbers in it.

    Attributes:
        contests: lists of row numbers of groups that compete with each other; all have a score. groups: all groups.
    """

    def __init__(self, table: pd.DataFrame, groups: RunGroups, same: Sequence[str] = SAME_TASK) -> None:
        """
        Args:
            table: the summary of ``groups`` (:func:`fusionkit.runs.summary.summarise`). same: columns in which rivals
                agree. They also agree in what identifies their data, unless data are averaged over.
        """
        self.groups = groups
        self._sides, self._over = sides_of(groups.runs), str(table.attrs[OVER])
        self._means, self._metrics = table["mean"].to_numpy(dtype=np.float64), table["metric"].tolist()
        self._differ: dict[frozenset[int], bool | None] = {}
        names = [name for name in same if name in table]
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for place, values in enumerate(table[names].astype(str).itertuples(index=False, name=None)):
            if np.isfinite(self._means[place]):
                alike[values].append(place)
        # In the order of their names: where means are equal, the order in which runs ended must not decide.
        told = [tuple(map(str, values)) for values in table[groups.keys].itertuples(index=False, name=None)]
        contests = [part for places in alike.values() for part in _by_identity(places, groups)]
        self.contests = [sorted(places, key=told.__getitem__) for places in contests]

    def is_better(self, ours: int, theirs: int) -> bool:
        """Whether a group's mean is better than another's."""
        return is_clearly_better(str(self._metrics[ours]), self._means[ours], self._means[theirs])

    def differ(self, ours: int, theirs: int) -> bool | None:
        """Whether a paired test separates two groups (p at most 0.05, not corrected).

        The test is over what the summary's intervals are over. If these are over seeds and test examples, a single
        pair is tested over test examples alone.

        Returns:
            False also where the difference of pairs has another sign than the difference of means, which counts runs
            without a partner too. None where no runs pair, or where there is a single pair and it has no answers or
            the test is over seeds.
        """
        both = frozenset((ours, theirs))
        if both not in self._differ:
            self._differ[both] = self._tested(ours, theirs)
        return self._differ[both]

    def _tested(self, ours: int, theirs: int) -> bool | None:
        pairs = pair_runs(self._sides[ours], self._sides[theirs], self.groups.keys, self.groups.chosen)
        if not len(pairs.ours):
            return None
        errors = error_of_difference(pairs, self.groups.answers)
        difference, over = float(np.mean(pairs.differences)), self._over if errors.test_examples else SEEDS
        p = errors.p_value(difference, over)
        if over == BOTH and np.isnan(errors.of_seeds):
            p = errors.p_value(difference, EXAMPLES)
        agree = difference * (self._means[ours] - self._means[theirs]) > 0
        return None if np.isnan(p) else bool(p <= 1 - LEVEL and agree)


def _by_identity(places: list[int], groups: RunGroups) -> list[list[int]]:
    """The groups by what identifies their data, which may share a name. A group without it, as earlier versions wrote
    records, goes with the others if these have one and the same.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for place in places:
        found[_identity_of(groups, place)].append(place)
    return [places] if len({*found} - {""}) < 2 else list(found.values())


def _identity_of(groups: RunGroups, place: int) -> str:
    """What identifies the data of a group's finished runs; empty where data are averaged over or no record tells it."""
    runs = groups.runs[place]
    if DATA in groups.average or IDENTITY not in runs:
        return ""
    return ", ".join(sorted(runs.loc[runs["status"] == "finished", IDENTITY].dropna().unique()))
