"""Standard errors of a group's mean score over seeds and over test examples."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.names import OVER
from fusionkit.plural import counted
from fusionkit.runs.example_scores import ExampleScores, OnTest, ScoredRun
from fusionkit.runs.floors import are_floors
from fusionkit.runs.note_texts import value_text
from fusionkit.runs.shown_split import SCORED_ON, TEST
from fusionkit.statistics.examples import Answered, TwoWay, two_way
from fusionkit.statistics.intervals import Floats, bootstrap_interval
from fusionkit.statistics.seeds import SeedError, seed_error

SEEDS, EXAMPLES, BOTH = OVER
PLACES = ("store", "mix", "evaluate_on")  # digests; with the name of the data they identify a test split


def chosen_over(over: str | None, frame: pd.DataFrame, answers: ExampleScores | None, most: int) -> tuple[str, str]:
    """What intervals and p-values are over (seeds, test examples or both), and a note where answers are missing.

    Args:
        over: ``seeds``, ``examples`` or ``both``. None means ``both`` where all of :func:`scored_heads` have answers on
            test (``examples`` if no group has two runs), else ``seeds``.
        most: the most seeds with a finished run of a head that a group of ``frame`` has.

    Raises:
        UsageError: runs without answers, where examples are asked for.
    """
    if over == SEEDS:
        return SEEDS, ""
    runs = scored_heads(frame)
    on_test = runs[runs[SCORED_ON] == TEST]
    lacking = {run.digest for run in scored_runs(on_test) if answers is None or not answers.of(run)}
    if over is None:
        if runs.empty or len(on_test) < len(runs) or answers is None:
            return SEEDS, ""
        if lacking:
            told = f"no answers are kept of {counted(len(lacking), 'run')}, so nothing is said of other test examples"
            return SEEDS, told
        return (EXAMPLES if most < 2 else BOTH), ""
    if lacking or len(on_test) < len(runs):
        keep = "`fusionkit evaluate RUNS STORE --keep` adds them; or " if lacking else ""  # never on validation
        raise UsageError(
            f"--over {over} needs each run's answers on test",
            received=f"{counted(len(lacking) or len(runs) - len(on_test), 'run')} without",
            remedy=f"{keep}compare with --over seeds",
        )
    return over, ""


def scored_heads(frame: pd.DataFrame) -> pd.DataFrame:
    """The finished runs of heads that have the score that is shown."""
    found: pd.DataFrame = frame[(frame["status"] == "finished") & ~are_floors(frame) & frame[SCORED_ON].notna()]
    return found


def scored_runs(runs: pd.DataFrame) -> list[ScoredRun]:
    """Finished runs, each with its test split and its score there."""
    columns = runs[["digest", "evaluated", "metric", "score"]].itertuples(index=False, name=None)
    return [ScoredRun._make((*each, stores)) for each, stores in zip(columns, stores_of(runs), strict=True)]


def stores_of(runs: pd.DataFrame) -> list[tuple[str, ...]]:
    """:attr:`ScoredRun.stores` of each run. Several stores to train on are judged on the last, without its share."""
    texts = ([value_text(value, "") for value in runs[name]] for name in ("task_stores", *PLACES))
    return [
        tuple(tasks.split(",")) if tasks else (judges or mix.split(",")[-1].partition(":")[0] or store,)
        for tasks, store, mix, judges in zip(*texts, strict=True)
    ]


def error_of_mean(seeds: SeedError, runs: pd.DataFrame, answers: ExampleScores | None) -> TwoWay:
    """The errors of a group's mean score.

    Args:
        seeds: the error of the mean over seeds. runs: the finished runs of the group.
    """
    if answers is None:
        return without_examples(seeds)
    runs = runs[runs[SCORED_ON].notna()]  # an average leaves out runs without the score
    scored = scored_runs(runs[runs[SCORED_ON] == TEST])
    found = [answers.of(run) for run in scored]
    if not found or not all(found) or len(found) < len(runs):
        return without_examples(seeds)
    keys = runs[["data_seed", "init_seed"]].itertuples(index=False, name=None)
    rows = [(key, run.evaluated, each) for key, run, sets in zip(keys, scored, found, strict=True) for each in sets]
    return two_way(tables_of(rows), seeds)


def tables_of(found: Sequence[tuple[Hashable, str, OnTest]]) -> list[Answered]:
    """A table for each test set.

    Args:
        found: of each run, or pair of runs, and test set: the row of its values, the name of the data, and the values.
            Values in one row of a table are averaged. The ``share`` of a pair is multiplied by its weight.
    """
    by_set: dict[tuple[str, str], dict[Hashable, list[OnTest]]] = {}
    for row, evaluated, each in found:
        by_set.setdefault((evaluated, each.examples), {}).setdefault(row, []).append(each)
    whole, tables = sum(each.share for _, _, each in found), list[Answered]()
    for (evaluated, _), rows in by_set.items():
        values = np.stack([np.mean([each.values for each in row], axis=0) for row in rows.values()])
        shares = np.array([sum(each.share for each in row) for row in rows.values()])
        # Columns of labels of one store have other gold answers, but the same examples.
        examples = evaluated, min(each.store for each in itertools.chain.from_iterable(rows.values()))
        tables.append(Answered(values, float(shares.sum()) / whole, examples, shares))
    return tables


def interval_of_mean(interval: str, mean: float, half: float, values: Floats, seeds: SeedError) -> tuple[float, float]:
    """The 95 % interval of the mean of ``values`` ``[n]``: Student's, ``half`` on each side, or the bootstrap's, unless
    draws and init seeds are crossed, because it resamples independent numbers.
    """
    return (mean - half, mean + half) if interval == "t" or seeds.crossed else bootstrap_interval(values)


def half_over_seeds(scores: Floats, draws: Sequence[int], inits: Sequence[int]) -> float:
    """Half the width of the 95 % interval over seeds of the mean of scores ``[n]``; NaN for one run."""
    return without_examples(seed_error(scores, draws, inits)).half(SEEDS)


def without_examples(seeds: SeedError) -> TwoWay:
    """The errors over seeds alone, for runs whose answers are not known."""
    return TwoWay(seeds.error, np.nan, np.nan, np.nan, np.nan, seeds, test_examples=0)
