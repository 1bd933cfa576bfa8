"""Which split's score a table of results shows."""

from __future__ import annotations

import pandas as pd

from fusionkit.names import SHOWN_SPLITS

TEST, VALIDATION = SHOWN_SPLITS


def scored_on(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """The runs with the score of this split in the place of that on test.

    Args:
        frame: one row a run and store that it was scored on. split: one of :data:`fusionkit.names.SHOWN_SPLITS`.

    Returns:
        for ``test`` the frame itself; for ``validation`` one row a run, as validation is of the data trained on.
    """
    if split == TEST:
        return frame
    runs = frame.drop_duplicates([name for name in ("sweep", "digest") if name in frame])
    return runs.assign(score=runs["validation_score"], evaluated=runs["data"])


def with_split(summary: pd.DataFrame, split: str) -> pd.DataFrame:
    """A summary that says whose scores it has: with a column ``split``, but for those on test."""
    if split != TEST:
        summary.insert(0, "split", split)
    return summary
