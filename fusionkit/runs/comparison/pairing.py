"""Pairs of runs of two groups, for paired comparisons.

Two runs are a pair if they agree in both seeds and in every axis (data, task, rate, shots, …) except those by which
their groups differ. Where two groups have no ``init_seed`` in common under one ``data_seed``, the pair is made of the
means over their init seeds. A floor has no init seed: with a single ``data_seed`` it makes a pair with each of the
other group's, otherwise with their mean. Differences of pairs over one training draw are not independent, so these
pairs form one **block**: a test flips or resamples the mean differences of blocks. A block is a training set and
``data_seed``; with a single ``data_seed`` a block is an ``init_seed``. Where conclusions are about other data sets, a
block is a data set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.metrics import is_clearly_better
from fusionkit.names import BLOCKS
from fusionkit.runs.errors_of_means import PLACES, stores_of
from fusionkit.runs.floors import are_floors
from fusionkit.runs.record import IDENTITY
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import AXES, FREE, SEEDS, scores_of
from fusionkit.statistics.seeds import SeedError, seed_error

# Groups that differ in one of these learned or answered different things: a common seed does not make a pair.
NEVER_CONFOUNDED = ("data", "evaluated", "task", "label")
OTHERS = (*SEEDS, "metric", SCORED_ON)
NO_SEED = -1
DATA_SEED, DATA = BLOCKS


class Trial(NamedTuple):
    """The fields of a run that matter once its axes agree; ``counts`` is the score that counts, ``stores`` as of
    :class:`fusionkit.runs.example_scores.ScoredRun`.
    """

    digest: str
    data: str
    evaluated: str
    data_seed: int
    init_seed: int
    metric: str
    counts: float
    stores: tuple[str, ...]


class Pair(NamedTuple):
    """The runs of a pair, usually one on each side."""

    ours: list[Trial]
    theirs: list[Trial]


@dataclass(frozen=True)
class Pairs:
    """The pairs of two groups.

    Attributes:
        trials: the runs of each pair. ours, theirs: scores of the pairs, ``[pairs]``. block: the number of each pair's
            block, ``[pairs]``. unpaired: finished runs of both groups without a partner. differs: axes in which the
            groups differ besides those by which they are compared. by_data: whether blocks are data sets.
    """

    trials: list[Pair]
    ours: NDArray[np.float64]
    theirs: NDArray[np.float64]
    block: NDArray[np.int64]
    unpaired: int
    differs: list[str]
    by_data: bool = False

    @property
    def differences(self) -> NDArray[np.float64]:
        """Mean difference of each block, ``[blocks]``."""
        counts = np.bincount(self.block)
        return np.bincount(self.block, weights=self.ours - self.theirs) / counts

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each pair in the mean difference, ``[pairs]``: those of a block add up to 1."""
        return 1.0 / np.bincount(self.block)[self.block]

    @cached_property
    def seeds(self) -> SeedError:
        """The error of the mean difference over new seeds, or over new data sets if these are the blocks; NaN for one
        block.
        """
        if self.by_data or len(self.differences) < 2:
            return seed_error(self.differences, range(len(self.differences)), [0] * len(self.differences))
        # Pairs with the same draw and the same initial weights, such as several rates, are one cell.
        cells: dict[tuple[str, int, int], list[float]] = defaultdict(list)
        weights: dict[tuple[str, int, int], float] = defaultdict(float)
        differences = (self.ours - self.theirs).tolist()
        for pair, difference, weight in zip(self.trials, differences, self.weights.tolist(), strict=True):
            first, parts = pair.ours[0], _by_init(pair, difference)
            for init, value in parts:
                key = first.data, first.data_seed, init
                cells[key].append(value)
                weights[key] += weight / len(parts)
        values = np.array([float(np.mean(sorted(each))) for each in cells.values()], dtype=np.float64)
        data, draws, inits = zip(*cells, strict=True)
        return seed_error(values, draws, inits, data, np.array(list(weights.values()), dtype=np.float64))

    @property
    def outcomes(self) -> tuple[int, int, int]:
        """The numbers of pairs that ours won, tied and lost; the lower perplexity wins."""
        metrics = [pair.ours[0].metric for pair in self.trials]
        triples = list(zip(metrics, self.ours, self.theirs, strict=True))
        won = sum(is_clearly_better(metric, one, other) for metric, one, other in triples)
        lost = sum(is_clearly_better(metric, other, one) for metric, one, other in triples)
        return won, len(triples) - won - lost, lost


@dataclass(frozen=True)
class Side:
    """The runs of a group that may be in pairs: the finished ones with a score.

    Attributes:
        trials: one per run. axes: the runs' values in the columns that are compared, and what identifies their data if
            records tell it, as texts, ``[runs]`` per column; None and NaN are the same text. is_floor: whether all runs
            are floors, which have no head.
    """

    trials: list[Trial]
    axes: dict[str, list[str]]
    is_floor: bool

    def keys(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Each run's values in these columns."""
        return list(zip(*(self.axes[name] for name in names), strict=True))


def sides_of(groups: Sequence[pd.DataFrame]) -> list[Side]:
    """Groups of runs, one row per run, as sides of pairs. All groups at once: pandas takes as long for one as for a
    hundred.
    """
    every = pd.concat(groups) if groups else pd.DataFrame()
    if every.empty:
        return [Side([], {name: [] for name in (*AXES, *OTHERS)}, False) for _ in groups]
    number = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    finished = (every["status"] == "finished").to_numpy()
    scored = finished & np.isfinite(scores_of(every))
    good, number = every[scored], number[scored]
    floors = are_floors(good).to_numpy()
    # A floor has no initial weights, so no init seed: it is paired with the mean over a head's init seeds.
    good = good.assign(counts=scores_of(good), init_seed=good["init_seed"].where(~floors, NO_SEED))
    fields = good[list(Trial._fields[:-1])].itertuples(index=False, name=None)
    trials = [Trial._make((*each, stores)) for each, stores in zip(fields, stores_of(good), strict=True)]
    told = [*AXES, *OTHERS, *([IDENTITY] if IDENTITY in good else [])]
    texts = {name: list(map(_text, good[name].tolist())) for name in told}
    found = []
    for group in range(len(groups)):
        first, last = np.searchsorted(number, (group, group + 1))
        axes = {name: values[first:last] for name, values in texts.items()}
        found.append(Side(trials[first:last], axes, bool(last > first and floors[first:last].all())))
    return found


def pair_runs(
    ours: Side, theirs: Side, told: Sequence[str], chosen: Sequence[str] = (), block: str = DATA_SEED
) -> Pairs:
    """The pairs of two groups of runs.

    Args:
        told: the columns by which the two groups are meant to differ. chosen: columns that validation chose for each
            group separately: runs that differ in them are still a pair. block: ``data_seed``, or ``data`` to make each
            data set a block.
    """
    sides = (ours, theirs)
    # Most options do not apply to a floor, so they are neither matched nor reported as different.
    free = FREE if any(side.is_floor for side in sides) else ()
    told, chosen = [*told, *free], [name for name in chosen if name not in free]
    differs = _differing(ours, theirs, told, chosen)
    axes = [name for name in AXES if name not in (*told, *differs, *chosen, "init_from")]
    axes += [name for name in ("data_seed", "metric", SCORED_ON) if name not in told]
    # Data sets may share a name. Records of an earlier fusionkit do not tell what identifies theirs.
    if DATA not in told and all(IDENTITY in side.axes and all(side.axes[IDENTITY]) for side in sides):
        axes.append(IDENTITY)
    # In a transfer each fusion starts from its own run, so these digests never agree between fusions. They are matched
    # only where runs of one group would otherwise have equal keys.
    whole = [side.keys([*axes, "init_seed"]) for side in sides]
    if "init_from" not in told and any(len(set(keys)) < len(keys) for keys in whole):
        axes.append("init_from")
    mine, other = (_by_keys(side, axes) for side in sides)
    common = sorted(set(mine) & set(other))
    one_draw = len({trial.data_seed for key in common for trial in mine[key]}) == 1
    pairs = [pair for key in common for pair in _match(mine[key], other[key], apart=one_draw)]
    paired = {trial for pair in pairs for trial in pair.ours}, {trial for pair in pairs for trial in pair.theirs}
    return Pairs(
        trials=pairs,
        ours=np.array([_mean(pair.ours) for pair in pairs], dtype=np.float64),
        theirs=np.array([_mean(pair.theirs) for pair in pairs], dtype=np.float64),
        block=_blocks(pairs, by_data=block == DATA),
        unpaired=sum(trial not in there for side, there in zip(sides, paired, strict=True) for trial in side.trials),
        differs=[name for name in differs if name not in PLACES] or differs,
        by_data=block == DATA,
    )


def _differing(ours: Side, theirs: Side, told: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """The axes besides ``told`` in which two groups differ: those with one value in each group, and ``chosen`` ones
    with other values in each.
    """
    differs = [name for name in AXES if name not in told and _tells(name, ours.axes, theirs.axes)]
    if ours.trials and theirs.trials:
        others = [name for name in chosen if name not in (*told, *differs)]
        differs += [name for name in others if set(ours.axes[name]) != set(theirs.axes[name])]
    return differs


def _blocks(pairs: Sequence[Pair], *, by_data: bool) -> NDArray[np.int64]:
    """The number of each pair's block, ``[pairs]``."""
    firsts = [pair.ours[0] for pair in pairs]
    # With a single data_seed, init seeds are the only thing that can separate blocks.
    one_draw = len({trial.data_seed for trial in firsts}) == 1
    inits = [max(pair.ours[0].init_seed, pair.theirs[0].init_seed) for pair in pairs]  # a floor's is the lowest
    seeds = [0 if by_data else init if one_draw else trial.data_seed for trial, init in zip(firsts, inits, strict=True)]
    blocks = [(trial.data, seed) for trial, seed in zip(firsts, seeds, strict=True)]
    numbers = {block: number for number, block in enumerate(sorted(set(blocks)))}
    return np.array([numbers[block] for block in blocks], dtype=np.int64)


def _text(value: Any) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)


def _tells(name: str, ours: Mapping[str, list[str]], theirs: Mapping[str, list[str]]) -> bool:
    """Whether an axis has one value in each group and the two values differ."""
    one, other = set(ours[name]), set(theirs[name])
    return name not in (*NEVER_CONFOUNDED, "init_from") and len(one) == len(other) == 1 and one != other


def _by_keys(side: Side, names: Sequence[str]) -> dict[tuple[str, ...], list[Trial]]:
    found: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for key, trial in zip(side.keys(names), side.trials, strict=True):
        found[key].append(trial)
    return found


def _match(ours: list[Trial], theirs: list[Trial], *, apart: bool) -> list[Pair]:
    """Pairs of runs with the same init seed; without a common init seed, one pair of all ours and all theirs. With
    ``apart`` floors on one side make a pair with each init seed of the other.
    """
    mine, other = {trial.init_seed for trial in ours}, {trial.init_seed for trial in theirs}
    if not (common := mine & other) and apart and NO_SEED in mine | other:
        common = (mine | other) - {NO_SEED}
    if not common:
        return [Pair(ours, theirs)]
    return [Pair(_with_init(ours, seed), _with_init(theirs, seed)) for seed in sorted(common)]


def _with_init(trials: list[Trial], seed: int) -> list[Trial]:
    """The runs with an init seed, and floors, which have none."""
    return [trial for trial in trials if trial.init_seed in (seed, NO_SEED)]


def _by_init(pair: Pair, difference: float) -> list[tuple[int, float]]:
    """The differences of a pair with their init seeds: one, or where floors are on one side one per run of the other,
    because these runs have initial weights of their own.
    """
    ours, theirs = pair
    if theirs[0].init_seed == NO_SEED:
        return [(trial.init_seed, trial.counts - _mean(theirs)) for trial in ours]
    if ours[0].init_seed == NO_SEED:
        return [(trial.init_seed, _mean(ours) - trial.counts) for trial in theirs]
    inits = {trial.init_seed for trial in ours}
    return [(inits.pop() if len(inits) == 1 and len(theirs) == 1 else NO_SEED, difference)]


def _mean(trials: list[Trial]) -> float:
    # Sorted first: rounding depends on the order, and the order in which runs ended must not turn a tie into a win.
    return float(np.mean(sorted(trial.counts for trial in trials)))
