"""The setting that validation chooses: of the rates, epochs and layers that were tried, group by group.

Runs are of one group where all but the tuned options and the seeds agree. Of a group the setting with the best mean
validation score over its seeds counts, and all runs of other settings are left out. The test score has no say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError
from fusionkit.metrics import is_better
from fusionkit.plural import counted
from fusionkit.runs.errors_of_means import are_means
from fusionkit.runs.floors import are_floors
from fusionkit.runs.probing import plain_runs
from fusionkit.runs.summary import AXES, DIGESTS, OF_A_SEED, SEEDS, TUNED

ORDERED = ("lr", "encoder_lr", "epochs")  # those whose grid has edges
SHOWN = 8  # names of a note
LISTED = 20  # runs of a message
UNTOLD = (*DIGESTS, "task", "encoder", "rows")  # what a note does not name groups by
TASK = ("data", "task", "label", "metric")  # runs that differ in these have scores of different things


@dataclass(frozen=True)
class Chosen:
    """Runs that were chosen.

    Attributes:
        frame: their rows. columns: the tuned options that had several values. notes: what a reader must know: settings
            at the edge of their grid, and groups with settings that not every seed has finished.
    """

    frame: pd.DataFrame
    columns: tuple[str, ...]
    notes: list[str]


def chosen_by(name: str | None, frame: pd.DataFrame, shown: Sequence[str] = ()) -> Chosen:
    """The runs that count: all of them, or with ``validation`` those of :func:`choose`, each value of the options that
    are ``shown`` by itself.
    """
    return Chosen(frame, (), []) if name is None else choose(frame, [each for each in TUNED if each not in shown])


def choose(frame: pd.DataFrame, tuned: Sequence[str] = TUNED, by: Sequence[str] | None = None) -> Chosen:
    """Of each group the runs of the setting that validation chooses.

    Args:
        frame: one row a run and store that it was scored on, as :meth:`fusionkit.runs.folder.RunsFolder.frame` has it.
        tuned: the options that are chosen. by: the columns that make a group; None are all axes but the tuned ones.

    Returns:
        the finished runs of one setting a group. The settings that count are those with the most finished seeds, and
        of these the ones without a failed or stopped run if there are any; of equal scores the first counts. A group
        without a finished run keeps its rows. Of a run of several tasks over stores of their own the mean decides, and
        its tasks' rows follow: one setting serves all.
    """
    keys = list(by or (name for name in AXES if name not in (*tuned, *OF_A_SEED)))
    whole, frame = frame, frame[~_following(frame)]
    tried_in_group = frame.groupby(keys, sort=False, dropna=False)
    columns = tuple(name for name in tuned if tried_in_group[name].nunique(dropna=False).max() > 1)
    if not columns:
        return Chosen(whole, (), [])
    kept, edges, missing = list[int](), dict[str, list[str]](), list[str]()
    names = _telling(frame, [name for name in keys if name not in UNTOLD]) or keys[-1:]
    # Groups of few columns, with places as their index: pandas copies each of a hundred columns for each group.
    narrow = frame[[*dict.fromkeys([*names, *columns, *SEEDS, "status", "metric", "validation_score"])]]
    places = tried_in_group.ngroup().to_numpy()
    for _, group in narrow.reset_index(drop=True).groupby(places, sort=True):
        best = _best(group, columns)
        kept += best.index.tolist()
        if not len(best) or best["status"].iloc[0] != "finished":
            continue
        values = (best[name].iloc[0] for name in names)
        group_name = " ".join(dict.fromkeys(str(value) for value in values if not pd.isna(value)))
        for edge in _edges(group, best, columns):
            edges.setdefault(edge, []).append(group_name)
        if len(_seeds(best)) < len(_seeds(group)):
            missing.append(group_name)
    tried = [f"{name} of {', '.join(map(_text, _values(frame[name])))}" for name in columns]
    notes = [f"chosen by validation: {'; '.join(tried)}"]
    notes += [f"{edge}: {_listed(named)}" for edge, named in edges.items()]
    if missing:
        told = _listed(missing)
        notes.append(f"no setting has finished with every seed: {told}; of those with the most seeds the best counts")
    chosen = frame.iloc[kept]
    if len(frame) < len(whole):
        chosen = whole[whole["digest"].isin(chosen["digest"])]
    return Chosen(chosen, columns, notes)


def best_run(frame: pd.DataFrame) -> str:
    """The digest of the run that validation chooses of one task: of the setting, fusion and all, with the best mean
    over its seeds the seed with the best score.

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
    scores = best["validation_score"].to_numpy(dtype=np.float64)
    place = scores.argmax() if is_better(str(best["metric"].iloc[0]), 1.0, 0.0) else scores.argmin()
    return str(best["digest"].iloc[int(place)])


def heads_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs that have a head to predict with: no floors, no control labels, no blocks of online codes."""
    return plain_runs(frame[~are_floors(frame)])


def best_of_each_task(frame: pd.DataFrame) -> dict[str, str]:
    """The run of each task that :func:`best_run` chooses, by the name of the task: its column, and the data where
    several data sets have the column. UsageError where no run has finished.
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
    """The finished runs as lines, the best by validation of each task first: digest, what the run was, its score."""
    good = heads_of(frame[frame["status"] == "finished"])
    told = [name for name in AXES if name not in UNTOLD and (name in ("label", "fusion") or _differs(good[name]))]
    names = [*told, *(name for name in SEEDS if _differs(good[name]))]
    lines = [["run", *names, "metric", "validation"]]
    for _, group in good.groupby([*TASK], sort=False, dropna=False):
        rising = not is_better(str(group["metric"].iloc[0]), 1.0, 0.0)
        for row in group.sort_values("validation_score", ascending=rising, kind="stable").to_dict(orient="records"):
            texts = [_text(None if pd.isna(row[name]) else row[name]) for name in names]
            lines.append([row["digest"], *texts, str(row["metric"]), f"{row['validation_score']:.4f}"])
    shown = lines[: LISTED + 1]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    found = ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in shown]
    return "\n".join([*found, *([f"  … and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else [])])


def _following(frame: pd.DataFrame) -> pd.Series[bool]:
    """The rows of tasks whose run has a row of the mean, too."""
    means = are_means(frame)
    return ~means & frame["digest"].isin(frame.loc[means, "digest"])


def _best(group: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The finished rows of the setting that counts; all rows of a group that has none."""
    # In the order of their values: of equal scores the first counts, whichever run ended first.
    setting = group.groupby(list(columns), sort=True, dropna=False).ngroup().to_numpy()
    finished, scores = (group["status"] == "finished").to_numpy(), group["validation_score"].to_numpy(dtype=np.float64)
    seeds = list(group[[*SEEDS]].itertuples(index=False, name=None))
    best, rank, best_mean = None, (0, False), np.nan
    for number in range(int(setting.max(initial=-1)) + 1):
        of_setting = np.flatnonzero(setting == number)
        good = of_setting[finished[of_setting]]
        if not len(good):
            continue
        own, known = (len({seeds[at] for at in good}), len(good) == len(of_setting)), scores[good]
        known = known[~np.isnan(known)]
        mean = float(known.mean()) if len(known) else np.nan
        better = np.isnan(best_mean) or is_better(str(group["metric"].iloc[good[0]]), mean, best_mean)
        if best is None or own > rank or (own == rank and better):
            best, rank, best_mean = good, own, mean
    return group if best is None else group.iloc[best]


def _seeds(runs: pd.DataFrame) -> set[tuple[int, int]]:
    return set(runs[[*SEEDS]].itertuples(index=False, name=None))


def _edges(group: pd.DataFrame, best: pd.DataFrame, columns: Sequence[str]) -> Iterator[str]:
    """What to say of each tuned number that is the least or the largest of those tried."""
    for name in (name for name in columns if name in ORDERED):
        tried, value = sorted(group[name].unique()), best[name].iloc[0]
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            edge, way = ("least", "smaller") if value == tried[0] else ("largest", "larger")
            yield f"{name} {value:g} is the {edge} that was tried, try {way} ones"


def _differs(column: pd.Series[Any]) -> bool:
    return len(column.drop_duplicates()) > 1


def _telling(frame: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The fusion, and each column that tells rows apart which those before it do not."""
    told, groups = list[str](), 1
    for name in sorted(keys, key=lambda key: key != "fusion"):
        if name == "fusion" or len(frame[[*told, name]].drop_duplicates()) > groups:
            told.append(name)
            groups = len(frame[told].drop_duplicates())
    return [name for name in keys if name in told]


def _values(column: pd.Series[Any]) -> list[Any]:
    """The values that were tried, numbers in their order; a run that has no such number tried none."""
    found = column.drop_duplicates()
    return sorted(found.dropna()) if column.name in ORDERED else found.tolist()


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many there are of others."""
    more = f" and {counted(len(names) - SHOWN, 'other')}" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "all" if value is None else str(value)
