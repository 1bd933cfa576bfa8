"""The options of a table of results: of ``fusionkit results``, and of a comparison in a study."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fusionkit.names import BLOCKS, CHOOSERS, CORRECTIONS, COSTS, INTERVALS, OVER, SHOWN_SPLITS, TESTS
from fusionkit.options.entry import WHOLE, about, option, options_of

OF_STUDIES = ("sweeps", "across")  # a folder of runs is one sweep, and only the Markdown table has columns across
OF_BASELINES = ("baseline", "block", "simultaneous", "test", "correction")  # they change nothing without a baseline


@dataclass(frozen=True)
class Comparison:
    """A table of results."""

    name: str
    sweeps: tuple[str, ...] = field(metadata=about("Sweeps whose runs are compared. [default: all]", lists=WHOLE))
    by: tuple[str, ...] = option((), "Column to group by; several are allowed. [default: what differs]", lists=WHOLE)
    average: tuple[str, ...] = option((), "Column to average over, like data; several are allowed.", lists=WHOLE)
    across: str | None = option(None, "The grouping column whose values become columns of the Markdown table.")
    metric: str | None = option(None, "Score to show, e.g. macro_f1, matthews, recall. [default: the task's own]")
    split: str = option(
        "test", "The split whose score is shown; validation for runs without a test score.", choices=SHOWN_SPLITS
    )
    baseline: str | None = option(
        None, "Group to compare with: a value of fusion or of a column to group by, or COLUMN=VALUE,…."
    )
    over: str | None = option(
        None,
        "What intervals and p-values generalise to: other seeds, other test examples. [default: both, if possible]",
        choices=OVER,
    )
    block: str = option(
        "data_seed",
        "What counts as one independent difference: data_seed, a training set and its seed; data, a data set, so that "
        "the result holds for other data sets.",
        choices=BLOCKS,
    )
    interval: str = option("t", "How 95 % intervals are computed.", choices=INTERVALS)
    simultaneous: bool = option(False, "Make the intervals of differences hold for all of them at once.")
    test: str | None = option(None, "Test of paired differences over seeds. [default: permutation]", choices=TESTS)
    correction: str = option("holm", "Correction of p-values for many comparisons.", choices=CORRECTIONS)
    pareto: str | None = option(None, "Mark groups that are better than all cheaper ones, by this cost.", choices=COSTS)
    ranks: bool = option(False, "Rank groups; groups that paired tests do not tell apart share ranks.")
    choose_by: str | None = option(
        None,
        "Show only the rates, epochs and layers that validation chose. [default: each is a group]",
        choices=CHOOSERS,
    )

    @property
    def tabulate_options(self) -> dict[str, Any]:
        """The arguments of :func:`fusionkit.runs.tabulate.tabulate`, without those that need a baseline if there is
        none.
        """
        left = (*OF_STUDIES, "metric", *(OF_BASELINES if self.baseline is None else ()))
        return {name: getattr(self, name) for name in options_of(type(self)) if name not in left}


def baseline_parts(text: str, columns: Iterable[str]) -> list[str]:
    """The parts ``COLUMN=VALUE`` of a baseline. A comma ends a part only before ``COLUMN=``, because names of fusions
    have commas and equals signs too: ``linear:gamma=no,norm=token``.
    """
    return re.split(rf",(?=(?:{'|'.join(map(re.escape, columns))})=)", text)
