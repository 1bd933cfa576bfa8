"""Which split's score a table of results shows: test, or validation where there is no test or the user says so."""

from __future__ import annotations

import pandas as pd

from fusionkit.names import SHOWN_SPLITS

TEST, VALIDATION = SHOWN_SPLITS
SCORED_ON = "scored_on"  # the column that says so, of a run and of a group of runs


def with_scores_of(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """The runs with the split whose score counts in ``scored_on``.

    Args:
        frame: one row a run and store that it was scored on, or task.
        split: one of :data:`fusionkit.names.SHOWN_SPLITS`.

    Returns:
        for ``test`` the frame itself; for ``validation`` one row a run and task, as validation is of the data trained
        on.
    """
    if split == TEST:
        return frame
    runs = frame.drop_duplicates([name for name in ("sweep", "digest", "task") if name in frame])
    return runs.assign(scored_on=runs[SCORED_ON].where(runs[SCORED_ON].isna(), VALIDATION), evaluated=runs["data"])


def with_failed(frame: pd.DataFrame) -> pd.DataFrame:
    """The same, failed runs beside those of their stores: they would have been scored on the same split."""
    places = frame.groupby(["store", "evaluate_on", "evaluated"], dropna=False, sort=False)[SCORED_ON]
    return frame.assign(scored_on=frame[SCORED_ON].fillna(places.transform("first")))
