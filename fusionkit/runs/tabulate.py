"""A table of runs as commands, studies and Python make it: the same choice of runs, the same groups, the same notes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fusionkit.runs.choice import chosen_by
from fusionkit.runs.comparison import compare
from fusionkit.runs.shown_split import TEST, with_scores_of
from fusionkit.runs.summary import NOTES, summarise


def tabulate(
    frame: pd.DataFrame,
    by: Sequence[str] = (),
    *,
    split: str = TEST,
    choose_by: str | None = None,
    baseline: str | None = None,
    average: Sequence[str] = (),
    interval: str = "t",
    test: str = "permutation",
    correction: str = "holm",
) -> pd.DataFrame:
    """One row a group of runs.

    Args:
        frame: one row a run and store that it was scored on. by: columns to group by; none are all that differ.
        split: whose score counts, ``test`` (validation's where there is no test) or ``validation``.
        choose_by: ``validation`` takes of several rates, epochs and layers the setting with the best mean validation
            score; those in ``by`` or ``average`` are not chosen.
        baseline, interval, test, correction: as of :func:`fusionkit.runs.comparison.compare`. average: as of
            :func:`fusionkit.runs.summary.summarise`.

    Returns:
        the table of one of these two; ``attrs["notes"]`` are lines for below it. Errors are theirs.
    """
    found = with_scores_of(frame, split)
    chosen = chosen_by(choose_by, found, (*by, *average))
    if baseline is None:
        table = summarise(chosen.frame, list(by) or None, interval, chosen.columns, average)
    else:
        tested = {"interval": interval, "test": test, "correction": correction}
        table = compare(chosen.frame, baseline, list(by) or None, **tested, chosen=chosen.columns, average=average)
    table.attrs[NOTES] = [*chosen.notes, *table.attrs[NOTES]]
    return table
