"""Which split's score a table of results shows: test, or validation where there is no test or the user asks for it."""

from __future__ import annotations

import pandas as pd

from fusionkit.names import SHOWN_SPLITS

TEST, VALIDATION = SHOWN_SPLITS
SCORED_ON = "scored_on"  # the column with this split, for a run and for a group of runs


def with_scores_of(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """The runs, with ``scored_on`` set to the split whose score counts.

    Args:
        frame: one row per run and store that it was scored on, or per run and task.
        split: one of :data:`fusionkit.names.SHOWN_SPLITS`.

    Returns:
        for ``test`` the frame itself; for ``validation`` one row per run and task, because the validation split is that
        of the training data.
    """
    if split == TEST:
        return frame
    runs = frame.drop_duplicates([name for name in ("sweep", "digest", "task") if name in frame])
    return runs.assign(scored_on=runs[SCORED_ON].where(runs[SCORED_ON].isna(), VALIDATION), evaluated=runs["data"])


def with_failed(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs, with ``scored_on`` of failed runs filled in from runs of the same task over the same stores, which are
    scored on the same split. A finished run without the score that is shown keeps none.
    """
    same = ["store", "evaluate_on", "evaluated", "task", "label"]
    splits = frame.groupby(same, dropna=False, sort=False)[SCORED_ON].transform("first")
    return frame.assign(scored_on=frame[SCORED_ON].where(frame["status"] != "failed", splits))
