"""Standard errors of a group's mean score over seeds and over test examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.names import OVER
from fusionkit.plural import counted
from fusionkit.runs.example_scores import ExampleScores, ScoredRun
from fusionkit.runs.floors import are_floors
from fusionkit.runs.record import MEAN
from fusionkit.runs.shown_split import SCORED_ON, TEST
from fusionkit.statistics.examples import Answered, TwoWay, two_way
from fusionkit.statistics.intervals import Floats
from fusionkit.statistics.seeds import SeedError, seed_error

SEEDS, EXAMPLES, BOTH = OVER


def chosen_over(over: str | None, frame: pd.DataFrame, answers: ExampleScores | None, most: int) -> tuple[str, str]:
    """What intervals and p-values are over (seeds, test examples or both), and a note where answers are missing.

    Args:
        over: ``seeds``, ``examples`` or ``both``. None means ``both`` where all finished runs have answers on test
            (``examples`` if no group has two runs), else ``seeds``.
        most: the most finished runs of heads that a group of ``frame`` has.

    Raises:
        UsageError: runs without answers, where examples are asked for.
    """
    if over == SEEDS:
        return SEEDS, ""
    runs = frame[(frame["status"] == "finished") & ~are_floors(frame) & ~are_means(frame)]
    on_test = runs[runs[SCORED_ON] == TEST]
    lacking = [run for run in scored_runs(on_test) if answers is None or answers.of(run) is None]
    if over is None:
        if runs.empty or len(on_test) < len(runs) or answers is None:
            return SEEDS, ""
        if lacking:
            told = f"no answers are kept of {counted(len(lacking), 'run')}, so nothing is said of other test examples"
            return SEEDS, told
        return (EXAMPLES if most < 2 else BOTH), ""
    if lacking or len(on_test) < len(runs):
        raise UsageError(
            f"--over {over} needs each run's answers on test",
            received=f"{counted(len(lacking) or len(runs) - len(on_test), 'run')} without",
            remedy="`fusionkit evaluate RUNS STORE --keep` adds them; or compare with --over seeds",
        )
    return over, ""


def are_means(frame: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are the mean of tasks over stores of their own, bool ``[rows]``: these tasks share no examples."""
    if "task_stores" not in frame:
        return pd.Series(data=False, index=frame.index)
    return frame["task_stores"].notna() & (frame["task"] == MEAN)


def scored_runs(runs: pd.DataFrame) -> list[ScoredRun]:
    """Finished runs, each with its test split and its score there."""
    columns = runs[["digest", "evaluated", "metric", "score"]].itertuples(index=False, name=None)
    return [ScoredRun(*each) for each in columns]


def error_of_mean(seeds: SeedError, runs: pd.DataFrame, answers: ExampleScores | None) -> TwoWay:
    """The errors of a group's mean score.

    Args:
        seeds: the error of the mean over seeds. runs: the finished runs of the group.
    """
    scored = scored_runs(runs[runs[SCORED_ON] == TEST])
    found = [None if answers is None else answers.of(run) for run in scored]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(runs):
        return without_examples(seeds)
    keys = runs[["data_seed", "init_seed"]].itertuples(index=False, name=None)
    # Of each test set (the data and its examples) the values of runs by their seeds.
    by_set: dict[tuple[str, str], dict[tuple[int, ...], list[Floats]]] = {}
    for run, each, key in zip(scored, known, keys, strict=True):
        by_set.setdefault((run.evaluated, each.examples), {}).setdefault(key, []).append(each.values)
    tables = [
        Answered(np.stack([np.mean(one, axis=0) for one in rows.values()]), sum(map(len, rows.values())) / len(known))
        for rows in by_set.values()
    ]
    return two_way(tables, seeds)


def half_over_seeds(scores: Floats, draws: Sequence[int], inits: Sequence[int]) -> float:
    """Half the width of the 95 % interval over seeds of the mean of scores ``[n]``; NaN for one run."""
    return without_examples(seed_error(scores, draws, inits)).half(SEEDS)


def without_examples(seeds: SeedError) -> TwoWay:
    """The errors over seeds alone, for runs whose answers are not known."""
    return TwoWay(seeds.error, of_examples=np.nan, of_both=np.nan, freedom=np.nan, seeds=seeds, test_examples=0)
