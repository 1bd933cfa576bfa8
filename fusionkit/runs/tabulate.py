"""Makes a table of runs for commands, studies and Python alike: which runs count, their groups, and the notes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fusionkit.plural import counted
from fusionkit.runs.choice import chosen_by
from fusionkit.runs.comparison.compare import check_over, compare
from fusionkit.runs.comparison.pairing import DATA_SEED
from fusionkit.runs.comparison.pareto import LEGEND as PARETO_LEGEND
from fusionkit.runs.comparison.pareto import with_pareto
from fusionkit.runs.comparison.ranks import LEGEND as RANKS_LEGEND
from fusionkit.runs.comparison.ranks import with_ranks
from fusionkit.runs.comparison.rivals import Rivals
from fusionkit.runs.comparison.ties import with_ties
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.probing import plain_runs, with_probing
from fusionkit.runs.shown_split import TEST, with_scores_of
from fusionkit.runs.summary import NOTES, RunGroups, summarise


def tabulate(
    frame: pd.DataFrame,
    by: Sequence[str] = (),
    *,
    split: str = TEST,
    choose_by: str | None = None,
    baseline: str | None = None,
    average: Sequence[str] = (),
    over: str | None = None,
    block: str = DATA_SEED,
    interval: str = "t",
    simultaneous: bool = False,
    test: str | None = None,
    correction: str = "holm",
    pareto: str | None = None,
    ranks: bool = False,
    answers: ExampleScores | None = None,
) -> pd.DataFrame:
    """One row per group of runs.

    Args:
        frame: one row per run and store that it was scored on. by: columns to group by; none means all that differ.
        split: the split whose score counts: ``test`` (validation where there is no test) or ``validation``.
        choose_by: ``validation`` keeps, of the rates, epochs and layers that were tried, the setting with the best mean
            validation score; options in ``by`` or ``average`` are not chosen. None keeps all runs.
        baseline, block, interval, simultaneous, test, correction: as for
            :func:`fusionkit.runs.comparison.compare.compare`.
        average, answers: as for :class:`fusionkit.runs.summary.RunGroups`.
        over: as for :func:`fusionkit.runs.summary.summarise`.
        pareto: a cost (:data:`fusionkit.names.COSTS`) by which groups get a mark
            (:mod:`fusionkit.runs.comparison.pareto`).
        ranks: whether groups get their ranks (:mod:`fusionkit.runs.comparison.ranks`).

    Returns:
        the table of ``compare`` if there is a baseline, else of ``summarise``, with the results of probing runs
        (:mod:`fusionkit.runs.probing`) and with ``tied``, the groups that tie with the best
        (:mod:`fusionkit.runs.comparison.ties`). ``attrs["notes"]`` are the lines below the table. Errors are those of
        the two functions and of ``RunGroups``.
    """
    every = with_scores_of(frame, split)
    chosen = chosen_by(choose_by, plain_runs(every), (*by, *average))
    check_over(over, interval, test, block, simultaneous)
    answers = answers if split == TEST else None  # answers on validation are not kept
    groups = RunGroups(chosen.frame, by, chosen.columns, average, answers)
    if baseline is None:
        table = summarise(groups, interval, over)
    else:
        table = compare(
            groups,
            baseline,
            interval=interval,
            test=test,
            correction=correction,
            over=over,
            block=block,
            simultaneous=simultaneous,
        )
    rivals = Rivals(table, groups)
    table = with_ties(table, rivals)
    legends = list[str]()
    if pareto is not None:
        table = with_pareto(table, rivals, pareto)
        legends.append(PARETO_LEGEND.format(pareto))
    if ranks:
        table = with_ranks(table, rivals)
        legends.append(RANKS_LEGEND)
    if stopped := frame.loc[frame["status"] == "stopped", "digest"].nunique():
        legends.append(f"{counted(stopped, 'run')} stopped early by halving: left out")
    table = with_probing(table, groups, every, interval)
    table.attrs[NOTES] = [*chosen.notes, *table.attrs[NOTES], *legends]
    return nested(table, by)


def nested(table: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The rows with equal values of the first column of ``by`` next to each other, within these by the second, …

    Otherwise groups keep the order of their first rows; runs of several sweeps would come sweep by sweep.
    """
    first = {name: table.groupby(list(by[: n + 1]), sort=False, dropna=False).ngroup() for n, name in enumerate(by)}
    ordered = table.loc[pd.DataFrame(first).sort_values(list(first), kind="stable").index] if first else table
    ordered = ordered.reset_index(drop=True)
    ordered.attrs = table.attrs
    return ordered
