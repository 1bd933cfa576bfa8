"""The main table of a report: each method on each task, compared with the baseline."""

from __future__ import annotations

import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.metrics import LESS_IS_BETTER
from fusionkit.report.display_names import METHOD_AXES
from fusionkit.report.report_data import CELL, ReportData
from fusionkit.runs.comparison import COMPARED, compare
from fusionkit.runs.summary import summarise

PLAIN = "last"  # compared with unless the user names another


def compared(study: ReportData, baseline: str | None = None) -> tuple[pd.DataFrame, list[str]]:
    """One row a task, draw size and method: the columns of :func:`fusionkit.fit.compare`, and whether it is the best.

    Args:
        baseline: a method; None is ``last``, where there is any and it has pairs.

    Returns:
        the table and notes for its reader.

    Raises:
        UsageError: no such method, or none of its runs has a partner.
    """
    frame = study.chosen
    if frame.empty:
        raise UsageError("no run has finished", remedy="`fusionkit status` says what failed and why")
    notes = []
    try:
        table = compare(frame, f"method={baseline or PLAIN}", CELL)
        notes.append(
            f"Δ is the mean difference to {baseline or PLAIN} over pairs of runs with the same seeds; p is of a "
            "permutation test over these pairs, corrected by Holm for all comparisons of the table."
        )
        least = table["smallest_p"].min()
        if pd.notna(least) and least > 0.05:
            notes.append(
                f"With so few seeds no p-value here can be below {least:.2g}: more seeds are needed for significance."
            )
        differ = {name for names in table["also_differs"].dropna() for name in names.split(", ")}
        if also := sorted(differ - {"fusion", *METHOD_AXES}):  # what makes a method is in its name
            notes.append(f"Some methods also differ from it in {', '.join(also)}: validation chose these.")
    except UsageError:
        if baseline is not None:
            raise
        table = summarise(frame, CELL)
        table[list(COMPARED)] = None
    return mark_best(table), notes


def mark_best(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``is_best``: whether a row has the best mean of its task and size of draw. Equal means are all best."""
    goodness = table["mean"].where(~table["metric"].isin(LESS_IS_BETTER), -table["mean"])
    best = goodness.groupby([table["task_name"], table["shots_name"]]).transform("max")
    return table.assign(is_best=goodness == best)
