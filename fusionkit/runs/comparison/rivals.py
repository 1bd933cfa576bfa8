"""Groups of a table that compete, and what a paired test says of two of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.metrics import is_better
from fusionkit.runs.comparison.errors_of_differences import error_of_difference
from fusionkit.runs.comparison.pairing import pair_runs, sides_of
from fusionkit.runs.errors_of_means import BOTH, EXAMPLES, SEEDS
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import OVER, group_columns, prepared
from fusionkit.statistics import LEVEL

SAME_TASK = ("sweep", "data", "evaluated", "task", "label", "metric", SCORED_ON, "shots")  # of rivals


class Rivals:
    """The groups of a summary, by their places in it.

    Attributes:
        contests: the places of groups with a score that compete, a list a contest. runs: of each group.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        frame: pd.DataFrame,
        by: list[str] | None = None,
        chosen: Sequence[str] = (),
        average: Sequence[str] = (),
        answers: ExampleScores | None = None,
        same: Sequence[str] = SAME_TASK,
    ) -> None:
        """
        Args:
            table: of ``frame`` by the same choices (:func:`fusionkit.runs.summary.summarise`). same: columns that
                rivals agree in.
        """
        frame = prepared(frame, average)
        self._keys, self._chosen = group_columns(frame, by, chosen, average), chosen
        self.runs = [group for _, group in frame.groupby(self._keys, sort=False, dropna=False)]
        self._sides = sides_of(self.runs)
        self._over, self._answers = str(table.attrs[OVER]), answers
        self._means, self._metrics = table["mean"].to_numpy(dtype=np.float64), table["metric"].tolist()
        self._differ: dict[frozenset[int], bool | None] = {}
        names = [name for name in same if name in table]
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, values in enumerate(table[names].astype(str).itertuples(index=False, name=None)):
            if np.isfinite(self._means[place]):
                alike[values].append(place)
        self.contests = list(alike.values())

    def is_better(self, ours: int, theirs: int) -> bool:
        """Whether a group's mean is better than another's."""
        return is_better(str(self._metrics[ours]), self._means[ours], self._means[theirs])

    def differ(self, ours: int, theirs: int) -> bool | None:
        """Whether a paired test over what the summary's intervals are over tells two groups apart (p at most 0.05, not
        corrected). One pair says nothing of other seeds and is tested over test examples alone. None where no runs
        pair, or one pair has no answers.
        """
        both = frozenset((ours, theirs))
        if both not in self._differ:
            self._differ[both] = self._tested(ours, theirs)
        return self._differ[both]

    def _tested(self, ours: int, theirs: int) -> bool | None:
        pairs = pair_runs(self._sides[ours], self._sides[theirs], self._keys, self._chosen)
        if not len(pairs.ours):
            return None
        errors = error_of_difference(pairs, self._answers)
        difference, over = float(np.mean(pairs.differences)), self._over if errors.test_examples else SEEDS
        p = errors.p_value(difference, over)
        if over == BOTH and np.isnan(errors.of_seeds):
            p = errors.p_value(difference, EXAMPLES)
        return None if np.isnan(p) else bool(p <= 1 - LEVEL)
