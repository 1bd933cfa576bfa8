"""Pairs of runs of two groups, for paired comparisons.

Two runs are a pair if they agree in every axis except those by which their groups differ: data, task, rate, shots, …,
and both seeds. Where two groups have no ``init_seed`` in common under one ``data_seed``, the means over their init
seeds are the pair. Differences of pairs over one training draw are not independent, so these pairs make one **block**:
a test flips or resamples the mean differences of blocks. A block is a training set and ``data_seed``; with a single
``data_seed`` a block is an ``init_seed``. Where conclusions are about other data sets, a block is a data set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.metrics import is_better
from fusionkit.names import BLOCKS
from fusionkit.runs.floors import are_floors
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.summary import AXES, FREE, SEEDS, scores_of
from fusionkit.statistics.seeds import SeedError, seed_error

# Groups that differ in these learned or answered something else: a common seed pairs nothing.
NEVER_CONFOUNDED = ("data", "evaluated", "task", "label")
OTHERS = (*SEEDS, "metric", SCORED_ON)
NO_SEED = -1
DATA_SEED, DATA = BLOCKS
PLACES = ("store", "mix", "evaluate_on")  # digests: legible columns tell the same, mostly


class Trial(NamedTuple):
    """The fields of a run that matter once its axes agree; ``counts`` is the score that counts."""

    digest: str
    data: str
    evaluated: str
    data_seed: int
    init_seed: int
    metric: str
    counts: float


@dataclass(frozen=True)
class Pairs:
    """The pairs of two groups.

    Attributes:
        trials: the runs of each pair, mostly one a side. ours, theirs: scores of the pairs, ``[pairs]``. block: each
            pair's number, ``[pairs]``. unpaired: finished runs of both groups without a partner. differs: axes in which
            the groups differ although they are not compared by them. by_data: whether blocks are data sets.
    """

    trials: list[tuple[list[Trial], list[Trial]]]
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
    def metrics(self) -> list[str]:
        """The name of each pair's score."""
        return [ours[0].metric for ours, _ in self.trials]

    @property
    def data(self) -> list[str]:
        """The training data of each pair."""
        return [ours[0].data for ours, _ in self.trials]

    @property
    def seeds(self) -> SeedError:
        """The error of the mean difference where seeds, or data sets where these are the blocks, are drawn anew."""
        if self.by_data:
            return seed_error(self.differences, range(len(self.differences)), [0] * len(self.differences))
        # Several pairs of one draw and one set of weights, such as several rates, are one cell.
        cells: dict[tuple[str, int, int], list[float]] = {}
        for (ours, theirs), difference in zip(self.trials, self.ours - self.theirs, strict=True):
            inits = {trial.init_seed for trial in ours}
            init = inits.pop() if len(inits) == 1 and len(theirs) == 1 else NO_SEED
            cells.setdefault((ours[0].data, ours[0].data_seed, init), []).append(float(difference))
        values = np.array([float(np.mean(sorted(each))) for each in cells.values()], dtype=np.float64)
        return seed_error(values, [key[1] for key in cells], [key[2] for key in cells], [key[0] for key in cells])

    @property
    def outcomes(self) -> tuple[int, int, int]:
        """The numbers of pairs that ours won, tied and lost; the lower perplexity wins."""
        triples = list(zip(self.metrics, self.ours, self.theirs, strict=True))
        won = sum(is_better(metric, one, other) for metric, one, other in triples)
        lost = sum(is_better(metric, other, one) for metric, one, other in triples)
        return won, len(triples) - won - lost, lost


def pair_runs(
    ours: pd.DataFrame, theirs: pd.DataFrame, told: list[str], chosen: Sequence[str] = (), block: str = DATA_SEED
) -> Pairs:
    """The pairs of two groups of runs, one row a run.

    Args:
        told: the columns that are meant to tell the two apart. chosen: columns that validation chose in each group by
            itself: runs that differ in them are a pair all the same. block: ``data_seed``, or ``data`` where each data
            set is a block.
    """
    ours, theirs = _scored(ours), _scored(theirs)
    # A floor knows nothing of most options, so these neither pair nor differ.
    free = FREE if any(len(runs) and are_floors(runs).all() for runs in (ours, theirs)) else ()
    told, chosen = [*told, *free], [name for name in chosen if name not in free]
    texts = [_texts(runs) for runs in (ours, theirs)]
    differs = [name for name in AXES if name not in told and _tells(name, *texts)]
    apart = [name for name in chosen if name not in (*told, *differs) and set(texts[0][name]) != set(texts[1][name])]
    differs += [] if any(each.empty for each in texts) else apart
    axes = [name for name in AXES if name not in (*told, *differs, *chosen, "init_from")]
    axes += [name for name in ("data_seed", "metric", SCORED_ON) if name not in told]
    # Each fusion of a transfer begins from its own run, so those digests never agree; they count where they must.
    if "init_from" not in told and any(each.duplicated([*axes, "init_seed"]).any() for each in texts):
        axes.append("init_from")
    mine, other = (_by_keys(runs, _keys(each, axes)) for runs, each in zip((ours, theirs), texts, strict=True))
    found = [pair for key in sorted(set(mine) & set(other)) for pair in _match(mine[key], other[key])]
    # Under one data_seed only the init seeds tell trials apart.
    one_draw = len({one[0].data_seed for one, _ in found}) == 1
    blocks = [
        (one[0].data, 0 if block == DATA else one[0].init_seed if one_draw else one[0].data_seed) for one, _ in found
    ]
    numbers = {each: number for number, each in enumerate(sorted(set(blocks)))}
    return Pairs(
        found,
        np.array([_mean(one) for one, _ in found], dtype=np.float64),
        np.array([_mean(two) for _, two in found], dtype=np.float64),
        np.array([numbers[each] for each in blocks], dtype=np.int64),
        len(ours) + len(theirs) - sum(len(one) + len(two) for one, two in found),
        [name for name in differs if name not in PLACES] or differs,
        block == DATA,
    )


def _scored(runs: pd.DataFrame) -> pd.DataFrame:
    """The finished runs with the score that counts."""
    good = runs[runs["status"] == "finished"]
    # A floor has no weights, so no seed of them: it is a pair with the mean over those of a head.
    good = good.assign(counts=scores_of(good), init_seed=good["init_seed"].where(~are_floors(good), NO_SEED))
    finite: pd.DataFrame = good[np.isfinite(good["counts"].to_numpy())]
    return finite


def _texts(runs: pd.DataFrame) -> pd.DataFrame:
    """The axes of some runs as texts to compare: None and NaN are one."""
    names = [*AXES, *OTHERS]
    # Row by row: of a table as wide as it is long pandas takes ten times as long to map each column.
    rows = [[_text(value) for value in row] for row in runs[names].to_numpy(dtype=object)]
    return pd.DataFrame(rows, columns=names, index=runs.index, dtype=object)


def _text(value: Any) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)


def _tells(name: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> bool:
    """Whether an axis has one value in each group and the two values differ."""
    one, other = set(ours[name]), set(theirs[name])
    return name not in (*NEVER_CONFOUNDED, "init_from") and len(one) == len(other) == 1 and one != other


def _keys(texts: pd.DataFrame, names: list[str]) -> list[tuple[str, ...]]:
    return list(texts[names].itertuples(index=False, name=None))


def _by_keys(runs: pd.DataFrame, keys: list[tuple[str, ...]]) -> dict[tuple[str, ...], list[Trial]]:
    trials = runs[list(Trial._fields)].itertuples(index=False, name=None)
    found: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for key, trial in zip(keys, trials, strict=True):
        found[key].append(Trial(*trial))
    return found


def _match(ours: list[Trial], theirs: list[Trial]) -> list[tuple[list[Trial], list[Trial]]]:
    """Runs by common init seed; without one in common, all of ours with all of theirs."""
    common = sorted({trial.init_seed for trial in ours} & {trial.init_seed for trial in theirs})
    if not common:
        return [(ours, theirs)]
    return [([t for t in ours if t.init_seed == seed], [t for t in theirs if t.init_seed == seed]) for seed in common]


def _mean(trials: list[Trial]) -> float:
    # Of sorted numbers: the order in which runs ended must not change a tie into a win.
    return float(np.mean(sorted(trial.counts for trial in trials)))
