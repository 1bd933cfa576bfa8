"""Chooses by validation one setting of the tuned options (rates, epochs, layers) for each group of runs.

Runs are in one group if they agree in everything but the tuned options and the seeds. In each group the setting with
the best mean validation score over its seeds is kept, and the runs of all other settings are left out. Test scores are
not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.errors import UsageError
from fusionkit.metrics import is_better, is_clearly_better
from fusionkit.names import MEAN
from fusionkit.runs.floors import are_floors
from fusionkit.runs.note_texts import first_names, option_text
from fusionkit.runs.probing import plain_runs
from fusionkit.runs.summary import AXES, DIGESTS, OF_A_SEED, SEEDS, TUNED

RATES = ("lr", "encoder_lr")
ORDERED = (*RATES, "epochs")  # tuned numbers: a chosen one can be at the edge of its grid
LISTED = 20  # runs in a message
UNTOLD = (*DIGESTS, "task", "encoder", "rows")  # columns that are not part of a group's name in notes
SWEEP = "sweep"  # a study's column
TASK = ("data", "task", "label", "metric")  # runs that differ in these have scores of different things


@dataclass(frozen=True)
class Chosen:
    """Runs that were chosen.

    Attributes:
        frame: their rows. columns: the tuned options that had several values. notes: messages for the reader: the
            values that were tried, chosen values at the edge of their grid, groups with one rate beside groups with
            several, and groups in which no setting has finished with every seed.
    """

    frame: pd.DataFrame
    columns: tuple[str, ...]
    notes: list[str]


def chosen_by(name: str | None, frame: pd.DataFrame, shown: Sequence[str] = ()) -> Chosen:
    """The runs that count: all runs, or with ``validation`` those that :func:`choose` gives. The options in ``shown``
    are not tuned: runs with each of their values are kept.
    """
    if name is None:
        return Chosen(frame, (), [])
    tuned = [each for each in TUNED if each not in shown]
    keys = [each for each in AXES if each not in (*tuned, *OF_A_SEED)]
    # A study's sweeps may differ in a tuned option alone: where they are told apart, none is chosen among them.
    return choose(frame, tuned, [*keys, *(each for each in shown if each == SWEEP and each in frame)])


def choose(frame: pd.DataFrame, tuned: Sequence[str] = TUNED, by: Sequence[str] | None = None) -> Chosen:
    """The runs of the setting that validation chooses in each group.

    Args:
        frame: one row per run and store that it was scored on, as :meth:`fusionkit.runs.folder.RunsFolder.frame` has
            it.
        tuned: the options that are chosen. by: the columns that make a group; None means all axes but the tuned ones.

    Returns:
        the finished runs of one setting per group; where no tuned option has two values within a group, all rows. Only
        the settings with the most finished seeds compete, and among these only those without a failed or stopped run,
        if there are any. On equal scores the first setting wins. A group without a finished run keeps its rows. For a
        run of several tasks over stores of their own the mean over its tasks decides, and the rows of its tasks follow:
        one setting serves all tasks. Where a metric is shown, the mean is over the tasks that have it.
    """
    keys = list(by or (name for name in AXES if name not in (*tuned, *OF_A_SEED)))
    whole, frame = frame, _without_tasks(frame)
    tried_in_group = frame.groupby(keys, sort=False, dropna=False)
    columns = tuple(name for name in tuned if tried_in_group[name].nunique(dropna=False).max() > 1)
    if not columns:
        return Chosen(whole, (), [])
    kept, edges, missing = list[int](), dict[str, list[str]](), list[str]()
    # Of each group its name, its own rate (the encoder's where it is trained) and how many values of it were tried.
    rates = list[tuple[str, str, int]]()
    names = _telling(frame, [name for name in keys if name not in UNTOLD]) or keys[-1:]
    # Only the needed columns, indexed by row number: pandas copies each of a hundred columns for each group.
    read = (*names, *columns, *RATES, *SEEDS, "fusion", "status", "metric", "validation_score")
    narrow = frame[[*dict.fromkeys(read)]]
    places = tried_in_group.ngroup().to_numpy()
    for _, group in narrow.reset_index(drop=True).groupby(places, sort=True):
        best = _best(group, columns)
        kept += best.index.tolist()
        if best["status"].iloc[0] != "finished":
            continue
        values = {name: best[name].iloc[0] for name in names}
        told = (_named(name, value) for name, value in values.items() if not pd.isna(value))
        group_name = " ".join(dict.fromkeys(told))
        for edge in _edges(group, best, columns):
            edges.setdefault(edge, []).append(group_name)
        own = "encoder_lr" if group["encoder_lr"].notna().any() else "lr"
        if own in tuned and not are_floors(group).any():
            rates.append((group_name, own, len(_values(group[own]))))
        if len(_seeds(best)) < len(_seeds(group)):
            missing.append(group_name)
    tried = [f"{name} of {', '.join(option_text(name, value) for value in _values(frame[name]))}" for name in columns]
    notes = [f"chosen by validation: {'; '.join(tried)}"]
    notes += [f"{edge}: {first_names(named)}" for edge, named in edges.items()]
    notes += _single_rates(rates)
    if missing:
        lacking = first_names(missing)
        notes.append(
            f"no setting has finished with every seed: {lacking}; of those with the most seeds the best counts"
        )
    chosen = frame.iloc[kept]
    if frame is not whole:
        chosen = runs_of(chosen, whole, keys)
    return Chosen(chosen, columns, notes)


def runs_of(chosen: pd.DataFrame, frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of a frame that are of the chosen runs; a run of two sweeps may be chosen in one of them."""
    same = ["digest", *(name for name in keys if name == SWEEP)]
    found: pd.DataFrame = frame[frame.set_index(same).index.isin(chosen.set_index(same).index)]
    return found


def best_run(frame: pd.DataFrame) -> str:
    """The digest of one task's best run by validation. First the setting (fusion and all other options) with the best
    mean over its seeds is chosen, then its seed with the best score.

    Raises:
        UsageError: the runs are of several tasks, or none has finished.
    """
    frame = heads_of(frame)
    # A failed run has no metric.
    tasks = frame.loc[frame["status"] == "finished", [*TASK]].drop_duplicates()
    if len(tasks) > 1:
        told = ", ".join(" ".join(map(str, row)) for row in tasks.itertuples(index=False, name=None))
        raise UsageError(
            f"these runs learned {len(tasks)} tasks: validation scores of different tasks cannot be compared",
            expected="runs of one task over one data set",
            received=told,
            remedy="name a run's folder, or export the best of each task: --best --by task",
        )
    every = [name for name in AXES if name not in (*TASK, *OF_A_SEED)]
    best = choose(frame.assign(all="all"), every, ["all"]).frame
    best = best[best["status"] == "finished"]
    if best.empty:
        raise UsageError("no run has finished", remedy="`fusionkit status` says what failed and why")
    best = best.sort_values([*SEEDS], kind="stable")  # of equal seeds the first, whichever ended first
    scores = best["validation_score"].to_numpy(dtype=np.float64)
    place = scores.argmax() if is_better(str(best["metric"].iloc[0]), 1.0, 0.0) else scores.argmin()
    return str(best["digest"].iloc[int(place)])


def heads_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with a head that predicts the task: no floors, no control labels, no blocks of online codes."""
    return plain_runs(frame[~are_floors(frame)])


def best_of_each_task(frame: pd.DataFrame) -> dict[str, str]:
    """The digest of the run that :func:`best_run` chooses for each task, by the task's name. The name is the label
    column, with data and task in front where several tasks have the column. UsageError where no run has finished.
    """
    finished = heads_of(frame[frame["status"] == "finished"])
    if finished.empty:
        raise UsageError("no run has finished", remedy="`fusionkit status` says what failed and why")
    groups = {tuple(map(str, key)): group for key, group in finished.groupby([*TASK], sort=False, dropna=False)}
    labels = [label for _, _, label, _ in groups]
    names = [label if labels.count(label) == 1 else f"{data}-{task}-{label}" for data, task, label, _ in groups]
    safe = [re.sub(r"[^\w.-]+", "-", name).strip("-.") or "task" for name in names]
    safe = [name if safe.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(safe, 1)]
    return {name: best_run(group) for name, group in zip(safe, groups.values(), strict=True)}


def listed_runs(frame: pd.DataFrame) -> str:
    """The finished runs as lines: digest, options that differ, score. Each task's best by validation comes first."""
    good = heads_of(frame[frame["status"] == "finished"])
    told = [name for name in AXES if name not in UNTOLD and (name in ("label", "fusion") or _differs(good[name]))]
    names = [*told, *(name for name in SEEDS if _differs(good[name]))]
    lines = [["run", *names, "metric", "validation"]]
    for _, group in good.groupby([*TASK], sort=False, dropna=False):
        rising = not is_better(str(group["metric"].iloc[0]), 1.0, 0.0)
        for row in group.sort_values("validation_score", ascending=rising, kind="stable").to_dict(orient="records"):
            texts = [option_text(name, row[name]) for name in names]
            lines.append([row["digest"], *texts, str(row["metric"]), f"{row['validation_score']:.4f}"])
    shown = lines[: LISTED + 1]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    found = ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in shown]
    if len(lines) > len(shown):
        found.append(f"  … and {len(lines) - len(shown)} more")
    return "\n".join(found)


def _without_tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows without those of single tasks over stores of their own. A run that has no row for their mean, because a
    metric is shown, gets one in place of its first task's.
    """
    apart = frame["task_stores"].notna()
    if not apart.any():
        return frame
    # In a frame with one row per run, its row has the columns of all tasks.
    means = apart & ((frame["task"] == MEAN) | frame["label"].astype(str).str.contains(",", regex=False))
    lacking = apart & ~frame["digest"].isin(frame.loc[means, "digest"])
    run = [name for name in ("digest", SWEEP) if name in frame]
    scores = frame["validation_score"].astype(float)
    keys = [frame[name] for name in run]
    own, heads = scores.groupby(keys, sort=False).transform("mean"), frame["head"].astype(str)
    found = frame.assign(
        task=frame["task"].where(~lacking, MEAN),
        label=frame["label"].astype(object).where(~lacking, None),
        head=frame["head"].where(~lacking, heads.groupby(keys, sort=False).transform("+".join)),
        validation_score=scores.where(~lacking, own),
    )
    kept: pd.DataFrame = found[~apart | means | (lacking & ~frame.duplicated(run))]
    return kept


def _best(group: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The finished rows of the chosen setting; all rows of a group without a finished run."""
    # Settings are numbered in the order of their values, so that a tie does not depend on which run ended first.
    setting = group.groupby(list(columns), sort=True, dropna=False).ngroup().to_numpy()
    finished, scores = (group["status"] == "finished").to_numpy(), group["validation_score"].to_numpy(dtype=np.float64)
    seeds = list(group[[*SEEDS]].itertuples(index=False, name=None))
    best: NDArray[np.int64] | None = None
    best_rank, best_mean = (0, False), np.nan
    for number in range(int(setting.max(initial=-1)) + 1):
        runs = np.flatnonzero(setting == number)
        good = runs[finished[runs]]
        if not len(good):
            continue
        known = scores[good][~np.isnan(scores[good])]
        mean = math.fsum(known) / len(known) if len(known) else np.nan  # whatever the order in which the runs ended
        rank = len({seeds[place] for place in good}), len(good) == len(runs)  # seeds; no run failed or was stopped
        is_better_mean = math.isnan(best_mean) or is_clearly_better(str(group["metric"].iloc[good[0]]), mean, best_mean)
        if rank > best_rank or (rank == best_rank and is_better_mean):
            best, best_rank, best_mean = good, rank, mean
    return group if best is None else group.iloc[best]


def _seeds(runs: pd.DataFrame) -> set[tuple[int, int]]:
    return set(runs[[*SEEDS]].itertuples(index=False, name=None))


def _edges(group: pd.DataFrame, best: pd.DataFrame, columns: Sequence[str]) -> Iterator[str]:
    """A message for each tuned number whose chosen value is the least or the largest that was tried."""
    for name in (name for name in columns if name in ORDERED):
        tried, value = _values(group[name]), best[name].iloc[0]
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            edge, way = ("least", "smaller") if value == tried[0] else ("largest", "larger")
            yield f"{name} {value:g} is the {edge} that was tried, try {way} ones"


def _single_rates(rates: Sequence[tuple[str, str, int]]) -> Iterator[str]:
    """A message for each rate of which some groups had one value, if other groups had several of theirs."""
    if all(count == 1 for _, _, count in rates):
        return
    for name in RATES:
        if named := [group for group, own, count in rates if (own, count) == (name, 1)]:
            yield f"one {name} was tried, other groups had several: {first_names(named)}"


def _differs(column: pd.Series[Any]) -> bool:
    return len(column.drop_duplicates()) > 1


def _telling(frame: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The fusion, and each column that separates rows which the columns before it do not."""
    told, groups = list[str](), 1
    for name in sorted(keys, key=lambda key: key != "fusion"):
        if name == "fusion" or len(frame[[*told, name]].drop_duplicates()) > groups:
            told.append(name)
            groups = len(frame[told].drop_duplicates())
    return [name for name in keys if name in told]


def _values(column: pd.Series[Any]) -> list[Any]:
    """The values that were tried. Those of :data:`ORDERED` are sorted, without missing values."""
    found = column.drop_duplicates()
    return sorted(found.dropna()) if column.name in ORDERED else found.tolist()


def _named(name: str, value: Any) -> str:
    """A value as a part of a group's name; a number alone would not say what it is."""
    return value if isinstance(value, str) else f"{name}={option_text(name, value)}"
