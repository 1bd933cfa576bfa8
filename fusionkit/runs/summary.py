"""Runs in groups: mean, standard deviation and the 95 % interval of the mean.

A mean is over seeds and draws. Any other option that differs within a group becomes a column, unless the user averages
over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.errors import UsageError, unknown_name
from fusionkit.metrics import stored_unit
from fusionkit.names import INTERVALS
from fusionkit.options.entry import options_of
from fusionkit.runs.errors_of_means import SEEDS as SEEDS_ALONE
from fusionkit.runs.errors_of_means import (
    chosen_over,
    error_of_mean,
    interval_of_mean,
    scored_heads,
    without_examples,
)
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.floors import are_floors, with_majority, without_options
from fusionkit.runs.note_texts import option_text, value_text
from fusionkit.runs.shown_split import SCORED_ON, TEST, with_failed
from fusionkit.runs.summary_notes import error_notes, split_notes
from fusionkit.specs import RunSpec
from fusionkit.statistics.seeds import seed_error

# Columns of a run: the seeds that means are over, and digests, which say little to a reader.
SEEDS, DIGESTS = ("data_seed", "init_seed"), ("store", "mix", "evaluate_on", "task_stores", "init_from", "draw_ids")
# Columns in which runs of one sweep may differ, in the order in which a table shows them.
AXES = (
    "data", "evaluated", "init_data", "encoder", "rows", "sides", *DIGESTS[:4],
    *(name for name in options_of(RunSpec) if name not in (*SEEDS, *DIGESTS)),
    *DIGESTS[4:],
)  # fmt: skip
# Axes whose value may differ from seed to seed: they do not separate settings.
OF_A_SEED = ("init_from", "draw_ids")
# Axes in which a floor has a value; the other options do not apply to it.
OF_FLOORS = (
    "data", "evaluated", "encoder", "rows", "sides", "store", "mix", "evaluate_on", "task", "label", "fusion", "shots",
    "draw", "draw_ids",
)  # fmt: skip
FREE = tuple(name for name in AXES if name not in OF_FLOORS)
# Columns that are empty in the row of a floor. Its runs keep an init seed, which pairs and averages read.
EMPTY_OF_FLOORS = (*FREE, "init_seed")
# Where a run's rows come from, as columns that a reader understands.
ORIGIN = ("data", "evaluated", "init_data", "encoder", "rows", "sides")
STORES, LEGIBLE = DIGESTS[:4], ("data", "evaluated", "encoder", "rows", "sides")
TUNED = ("lr", "encoder_lr", "epochs", "fusion_layers")  # options that validation chooses
# Keys of a summary's attrs: its columns that validation chose, and the lines below the table.
CHOSEN, NOTES = "chosen", "notes"
ERRORS = ("se_seeds", "se_examples", "std_draws", "std_inits", "std_rest", "test_examples")
COLUMNS = (
    "metric", "unit", SCORED_ON, "runs", "failed", "mean", "std", "low", "high", *ERRORS, "validation", "parameters",
    "seconds_alone",
)  # fmt: skip
OVER = "over"  # key of a summary's attrs: what its intervals are over
READ = (  # columns that are read of each group
    "digest", "evaluated", *STORES, "status", "fusion", "metric", "score", "validation_score", SCORED_ON,
    "fusion_parameters", "head_parameters", "trained_parameters", "seconds_alone",
)  # fmt: skip


class RunGroups:
    """Runs in groups. A table of them has one row per group, in the same order.

    Attributes:
        frame: the runs that count. Stopped runs are left out, failed runs get the split that runs over their stores are
            scored on, and floors lose the values of options that do not apply to them. An average over fusions leaves
            out floors.
        by, chosen, average, answers: as given. keys: the columns that define the groups. values: each group's values in
            these columns. runs: each group's runs.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        by: Sequence[str] = (),
        chosen: Sequence[str] = (),
        average: Sequence[str] = (),
        answers: ExampleScores | None = None,
    ) -> None:
        """
        Args:
            frame: one row per run, as :meth:`fusionkit.runs.folder.RunsFolder.frame` gives it.
            by: columns to group by; none means task, label, fusion and every axis on which the runs differ. An axis on
                which runs of one group differ is a column too.
            chosen: columns that validation chose (:mod:`fusionkit.runs.choice`): runs are not grouped by them.
            average: columns to average over. answers: the runs' answers on test; None if there are none.

        Raises:
            UsageError: a column does not exist or is both grouped by and averaged over, or an average leaves no groups.
        """
        found = with_failed(without_stopped(frame))
        if "fusion" in average:
            found = found[~are_floors(found)]
        self.frame = without_options(found, FREE)
        self.by, self.chosen, self.average, self.answers = by, chosen, average, answers
        self.keys = group_columns(self.frame, by, chosen, average)
        named = without_options(self.frame[list(dict.fromkeys([*self.keys, "fusion"]))], EMPTY_OF_FLOORS)
        groups = list(self.frame.groupby([named[key] for key in self.keys], sort=False, dropna=False))
        self.values, self.runs = [values for values, _ in groups], [runs for _, runs in groups]


def summarise(groups: RunGroups, interval: str = "t", over: str | None = None, of_means: bool = False) -> pd.DataFrame:
    """One row per group.

    Args:
        groups: the runs. If they are averaged over columns, a group's mean is the mean over the columns' values of the
            mean score with each value. Its ``std`` is over seeds, after averaging each seed's scores over the values.
        interval: ``t`` or ``bootstrap``.
        over: what intervals account for: other ``seeds``, other test ``examples`` or ``both``. None means both where
            all runs have answers (examples if no group has two seeds), else seeds. A bootstrap is over seeds.
        of_means: whether the notes are about intervals of means alone, and not about tests.

    Returns:
        the group's columns and the chosen ones, then ``metric`` and its ``unit``; ``scored_on``, the split of the
        scores, test or validation, never both in one group; ``runs`` and ``failed``; ``mean`` and ``std`` (n - 1) of
        these scores, ``low`` and ``high`` of the 95 % interval of the mean; its standard errors ``se_seeds`` and
        ``se_examples``, and the number of ``test_examples``; if draws and init seeds are crossed, the standard
        deviations ``std_draws``, ``std_inits`` and ``std_rest``; mean ``validation`` score, mean number of learned
        ``parameters``, mean ``seconds_alone``. There is no ``std`` for one run, or for an average over values that were
        not trained with the same seeds. ``attrs["notes"]`` are the lines below the table.
        UsageError for an interval that does not exist.
    """
    if interval not in INTERVALS:
        raise unknown_name("interval", interval, INTERVALS)
    frame, by, keys, average = groups.frame, groups.by, groups.keys, groups.average
    shown = [name for name in groups.chosen if name not in keys]
    # Only the needed columns: a mask copies each of a hundred.
    read = [name for name in dict.fromkeys([*shown, *average, *SEEDS, *READ]) if name in frame]
    narrow = [runs[read] for runs in groups.runs]
    most = max((len(scored_heads(runs)[[*SEEDS]].drop_duplicates()) for runs in narrow), default=0)
    over, lacking = chosen_over(SEEDS_ALONE if interval != "t" else over, frame, groups.answers, most)
    rows = []
    for values, runs in zip(groups.values, narrow, strict=True):
        found = {name: _value_of(runs[name]) for name in shown}
        row = _group(runs, interval, average, over, groups.answers)
        rows.append(row | dict(zip(keys, values, strict=True)) | found)
    summary = pd.DataFrame(rows, columns=list(dict.fromkeys([*keys, *shown, *COLUMNS])))
    expected = [*by, SCORED_ON, *(["fusion"] if are_floors(frame).any() else [])]
    notes = _added_note([name for name in keys if name not in expected and _runs_differ(frame, by, name)] if by else [])
    notes += _average_notes(frame, keys, average) if average else []
    notes += split_notes(summary)
    summary, told = with_majority(summary, [*keys, *shown], EMPTY_OF_FLOORS)
    notes += [*told, *error_notes(summary, over, average, of_means), *([lacking] if lacking else [])]
    summary.attrs |= {CHOSEN: shown, NOTES: notes, OVER: over}
    return summary


def without_stopped(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs without those that ``fit --halving`` stopped early: these have no test score, and they did not fail."""
    kept: pd.DataFrame = frame[frame["status"] != "stopped"]
    return kept


def _value_of(values: pd.Series[Any]) -> object:
    """The value that all runs of a group share, or their several values joined to a text."""
    found = values.drop_duplicates().tolist()
    return found[0] if len(found) == 1 else ", ".join(option_text(str(values.name), each) for each in found)


def group_columns(frame: pd.DataFrame, by: Sequence[str], chosen: Sequence[str], average: Sequence[str]) -> list[str]:
    """The columns that define the groups, without the ``chosen`` ones and those to ``average`` over: ``by`` and every
    axis on which runs of one group differ; without ``by``, task, label, fusion and every axis on which the runs differ.
    """
    # Only heads decide which options are columns; floors are grouped by their names.
    if not (floors := are_floors(frame)).all() and floors.any():
        keys = group_columns(frame[~floors], by, chosen, average)
        return list(dict.fromkeys([*keys, "fusion"]))
    for name in (*by, *average):
        if name not in frame.columns:
            raise unknown_name("column of the results", name, frame.columns)
    if SCORED_ON in average:
        raise UsageError(
            "scores on test and on validation have no common mean",
            received=f"average {SCORED_ON}",
            remedy=f"leave {SCORED_ON} out; --split validation compares all runs on validation",
        )
    if both := [name for name in by if name in average]:
        raise UsageError(
            f"{both[0]} is both grouped by and averaged over",
            received=f"by {', '.join(by)}; average {', '.join(average)}",
            remedy=f"leave {both[0]} out of one of them",
        )
    if by or average:
        named = by or [name for name in ("task", "label", "fusion") if name not in average]
        keys = [*dict.fromkeys(named), *_unlike(frame, named, chosen, average)]
        if not keys:
            raise UsageError(
                "an average over all that the runs differ in leaves no groups",
                expected="a column to group by",
                received=f"average {', '.join(average)}",
                remedy="leave one of them out, or name a column to group by: --by data",
            )
        return _with_splits(frame, keys)
    differ = {name for name in AXES if name not in chosen and len(frame[name].drop_duplicates()) > 1}
    # Digests are shown only where no readable column separates the stores, or the runs that these started from.
    stores = frame.groupby([*LEGIBLE], dropna=False)[[*STORES]]
    if stores.nunique(dropna=False).to_numpy().max(initial=0) <= 1:
        differ -= {*STORES}
    differ -= {name for name in OF_A_SEED if _is_of_a_seed(frame, name)}  # each data seed has its own draw, as usual
    if (frame["evaluated"] == frame["data"]).all():
        differ -= {"evaluated"}
    return _with_splits(frame, [name for name in AXES if name in differ or name in ("task", "label", "fusion")])


def _with_splits(frame: pd.DataFrame, keys: list[str]) -> list[str]:
    """The columns of groups, and ``scored_on`` where a group would mix scores of test and validation."""
    mixes = SCORED_ON not in keys and varies(frame, keys, SCORED_ON, dropna=True)
    return [*keys, SCORED_ON] if mixes else keys


def _unlike(frame: pd.DataFrame, keys: Sequence[str], chosen: Sequence[str], average: Sequence[str]) -> list[str]:
    """The axes on which runs differ although they agree in ``keys`` and in what is averaged over.

    Digests are among them only where nothing else separates such runs.
    """
    told, taken = [*keys, *average], {*keys, *average, *chosen}
    differ = [name for name in AXES if name not in taken and len(frame[name].drop_duplicates()) > 1]
    found: list[str] = []
    # One after the other: runs that differ in ``data`` need no column ``evaluated`` to separate them again.
    for name in (name for name in ORIGIN if name in differ):
        found += [name] if varies(frame, [*told, *found], name) else []
    # All at once: if a rate and a number of epochs change together, a reader must see both.
    options = [name for name in differ if name not in (*ORIGIN, *DIGESTS)]
    found += [name for name in options if varies(frame, [*told, *found], name)]
    for name in (name for name in DIGESTS if name in differ):
        if not _is_of_a_seed(frame, name) and varies(frame, [*told, *found], name):
            found.append(name)
    return [name for name in AXES if name in found]


def _is_of_a_seed(frame: pd.DataFrame, name: str) -> bool:
    """Whether a digest belongs to the seed of a run: each seed may have a draw, or start from a run, of its own, and no
    two runs differ in this digest alone.
    """
    return name in OF_A_SEED and not frame.duplicated([each for each in (*AXES, *SEEDS) if each != name]).any()


def varies(frame: pd.DataFrame, within: list[str], name: str, dropna: bool = False) -> bool:
    """Whether any group by the columns ``within`` has several values of ``name``; with ``dropna`` missing values do not
    count.
    """
    groups = frame.groupby(list(dict.fromkeys(within)), sort=False, dropna=False)
    return bool(groups[name].nunique(dropna=dropna).max() > 1)


def _runs_differ(frame: pd.DataFrame, by: Sequence[str], name: str) -> bool:
    """Whether runs that agree in ``by`` differ in a column. A run of several tasks, or one that was scored on several
    stores, has several values; they are compared as a whole.
    """
    runs = [*dict.fromkeys([*by, "digest"])]
    values = frame.groupby(runs, sort=False, dropna=False)[name].agg(lambda each: str(sorted(map(str, each))))
    return varies(values.reset_index(), [*by], name)


def _added_note(added: Sequence[str]) -> list[str]:
    if not added:
        return []
    tuned = [name for name in added if name in TUNED]
    choose = f"; --choose-by validation takes the best {' and '.join(tuned)}" if tuned else ""
    return [
        f"runs of one group differ in {', '.join(added)}: each value has a row of its own{choose}; "
        "--average COLUMN averages over a column"
    ]


def _average_notes(frame: pd.DataFrame, keys: list[str], average: Sequence[str]) -> list[str]:
    """Notes: what an average is over, which groups have other values of it than others, and which have no ``std``
    because not all values have the same seeds.
    """
    good = frame[(frame["status"] == "finished") & ~np.isnan(scores_of(frame))]  # others are in no mean
    several = [key for key in keys if len(good[key].drop_duplicates()) > 1] or keys[:1]
    over, unpaired = dict[tuple[str, ...], list[str]](), list[str]()
    for _, group in good.groupby(keys, sort=False, dropna=False):
        name = " ".join(value_text(group[key].iloc[0]) for key in several)
        each = group[[*average]].drop_duplicates().itertuples(index=False, name=None)
        over.setdefault(tuple(sorted(" ".join(map(value_text, value)) for value in each)), []).append(name)
        if _by_seed(group, scores_of(group), average).isna().to_numpy().any():
            unpaired.append(name)
    what = " and ".join(average)
    told = []
    for values, names in over.items():
        of = f" ({', '.join(names)})" if len(over) > 1 else ""
        told.append(f"averaged over {what} {', '.join(values)}{of}")
    if len(over) > 1:
        told.append(f"averages over other values of {what} do not compare")
    notes = ["; ".join([*told, "mean of means, std over seeds"])] if over else []
    if unpaired:
        notes.append(f"no std and no interval where not every {what} has the same seeds: {', '.join(unpaired)}")
    return notes


def _by_seed(good: pd.DataFrame, scores: NDArray[np.float64], average: Sequence[str]) -> pd.DataFrame:
    """Scores of finished runs: one row per pair of seeds, one column per value that is averaged over; NaN without a
    run.
    """
    values = good.groupby(list(average), sort=False, dropna=False).ngroup()
    each = good[[*SEEDS]].assign(of=values, scores=scores)
    return each.pivot_table(index=[*SEEDS], columns="of", values="scores")


def scores_of(runs: pd.DataFrame) -> NDArray[np.float64]:
    """Each run's score on its split ``scored_on``, ``[runs]``."""
    return runs["score"].where(runs[SCORED_ON] == TEST, runs["validation_score"]).to_numpy(dtype=np.float64)


def learned_parameters(runs: pd.DataFrame) -> pd.Series[float]:
    """The number of parameters that each run learned, ``[runs]``. Where a record has no ``trained_parameters``, all of
    fusion and head are learned.
    """
    every = (runs["fusion_parameters"] + runs["head_parameters"]).astype(float)
    return runs["trained_parameters"].astype(float).fillna(every) if "trained_parameters" in runs else every


class SeedScores(NamedTuple):
    """Scores of a group's finished runs, by seed.

    Attributes:
        mean: NaN without a run. values: the scores that vary by seed, ``[n]``: one per run, or one per pair of seeds
            for an average. seeds: the data seed and init seed of each. complete: False for an average over values that
            were not trained with the same seeds: means of seeds would then also differ by the values that they are
            over, so there are no ``values``.
    """

    mean: float
    values: NDArray[np.float64]
    seeds: list[tuple[int, int]]
    complete: bool

    @property
    def std(self) -> float:
        """The standard deviation (n - 1); NaN for fewer than two values."""
        return float(np.std(np.sort(self.values), ddof=1)) if len(self.values) > 1 else np.nan


def scores_by_seed(good: pd.DataFrame, scores: NDArray[np.float64], average: Sequence[str]) -> SeedScores:
    """The scores ``[runs]`` of finished runs by their seeds, averaged over the values of the columns ``average``."""
    if average and len(good):
        table = _by_seed(good, scores, average)
        complete = not table.isna().to_numpy().any()
        values, keys = (table.mean(axis=1).to_numpy(), list(table.index)) if complete else (np.empty(0), [])
        return SeedScores(float(table.mean().mean()), values, keys, complete)
    # Sorted: rounding depends on the order, and the order in which runs ended must not show.
    mean = float(np.mean(np.sort(scores))) if len(scores) else np.nan
    seeds: list[tuple[int, int]] = list(good[[*SEEDS]].itertuples(index=False, name=None))
    return SeedScores(mean, scores, seeds, complete=True)


def _mean_validation(good: pd.DataFrame, average: Sequence[str]) -> float:
    """The mean validation score, averaged as the scores are; NaN if none is known."""
    scores = good["validation_score"].to_numpy(dtype=np.float64)
    if average and len(good):
        scores = _by_seed(good, scores, average).mean().to_numpy()
    return np.nan if np.isnan(scores).all() else float(np.nanmean(scores))


def _group(
    group: pd.DataFrame, interval: str, average: Sequence[str], over: str, answers: ExampleScores | None
) -> dict[str, object]:
    """The values of :data:`COLUMNS` for one group."""
    good = group[group["status"] == "finished"]
    n, found = len(good), scores_by_seed(good, scores_of(good), average)
    of_floors = n > 0 and bool(are_floors(good).all())  # floors have no initial weights
    draws, inits = [draw for draw, _ in found.seeds], [0 if of_floors else init for _, init in found.seeds]
    of_seeds = seed_error(found.values, draws, inits)
    errors = error_of_mean(of_seeds, good, answers) if found.complete else without_examples(of_seeds)
    half = errors.half(over if errors.test_examples else SEEDS_ALONE)
    low, high = interval_of_mean(interval, found.mean, half, found.values, of_seeds)
    metrics, splits = good["metric"].unique(), group[SCORED_ON].dropna().unique()
    metric = metrics[0] if len(metrics) == 1 else "mixed" if n else None
    return {
        "metric": metric,
        "unit": stored_unit(metric),
        SCORED_ON: splits[0] if len(splits) else None,
        "runs": n,
        "failed": group.loc[group["status"] != "finished", "digest"].nunique(),  # a run may have a row for each store
        "mean": found.mean,
        "std": found.std,
        "low": low,
        "high": high,
        "se_seeds": errors.of_seeds,
        "se_examples": errors.of_examples,
        "std_draws": of_seeds.of_draws,
        "std_inits": of_seeds.of_inits,
        "std_rest": of_seeds.of_rest,
        "test_examples": errors.test_examples or None,
        "validation": _mean_validation(good, average),
        "parameters": float(learned_parameters(good).mean()) if n else np.nan,
        "seconds_alone": float(good["seconds_alone"].astype(float).mean()) if n else np.nan,
    }
