"""Adds the results of probing runs to the groups of a summary: selectivity, and the length of an online code.

    selectivity = mean of (score − control score) over pairs           (Hewitt and Liang 2019)
    L_online = Σ over blocks of −log₂ p, and t_1 b of the first        compression = L_uniform / L_online
                                                                       (Voita and Titov 2020)

A pair is a run and its control run, which agree in all options and both seeds. The difference and its interval are
computed as for other pairs (:mod:`fusionkit.runs.comparison.pairing`). A code is the sum over blocks that agree with a
run in the same way (symbols: :mod:`fusionkit.dataset.online_code`). There is one code per seed; where columns are
averaged over, it is the mean over their values. The interval is that of the mean of the codes, as for scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.runs.comparison.pairing import pair_runs, sides_of
from fusionkit.runs.errors_of_means import SEEDS as SEEDS_ALONE
from fusionkit.runs.errors_of_means import interval_of_mean, without_examples
from fusionkit.runs.record import CODE
from fusionkit.runs.summary import AXES, SEEDS, RunGroups, scores_by_seed, without_stopped
from fusionkit.specs import MDL_BLOCKS
from fusionkit.statistics.seeds import seed_error

CONTROL, MDL = "control", "mdl"
SELECTIVITY = ("control_score", "selectivity", "selectivity_low", "selectivity_high", "controls")
CODES = ("code_bits", "code_std", "code_low", "code_high", "compression", "codes")
PROBED = (*SELECTIVITY, *CODES)
PAIRED_BY = [name for name in (*AXES, *SEEDS) if name not in (CONTROL, MDL)]


def plain_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs on the task itself: no runs on control labels and no blocks of online codes."""
    if CONTROL not in frame:
        return frame
    kept: pd.DataFrame = frame[~frame[CONTROL].astype(bool) & frame[MDL].isna()]
    return kept


def with_probing(summary: pd.DataFrame, groups: RunGroups, every: pd.DataFrame, interval: str = "t") -> pd.DataFrame:
    """A summary with each group's selectivity, if there are control runs, and its online code, if there are blocks.

    Args:
        summary: of ``groups`` (:func:`fusionkit.runs.summary.summarise`). groups: of the plain runs. every: all runs.

    Returns:
        the summary with ``control_score``, ``selectivity``, ``selectivity_low``, ``selectivity_high`` and ``controls``,
        the number of pairs; with ``code_bits`` (mean over seeds), ``code_std``, ``code_low``, ``code_high``, mean
        ``compression`` and ``codes``, the number of those whose blocks have all ended.
    """
    every = without_stopped(every)
    if CONTROL not in every:
        return summary
    control, blocks = every[every[CONTROL].astype(bool)], every[every[MDL].notna()]
    found = [summary]
    if len(control):
        twins = zip(groups.runs, _twins(groups.runs, control), strict=True)
        rows = [_selectivity(group, others, interval, groups.chosen) for group, others in twins]
        found.append(pd.DataFrame(rows, columns=list(SELECTIVITY)))
    if len(blocks):
        rows = [_code(each, interval, groups.average) for each in _twins(groups.runs, blocks)]
        found.append(pd.DataFrame(rows, columns=list(CODES)))
    whole = pd.concat(found, axis=1)
    whole.attrs |= summary.attrs
    return whole


def _twins(groups: Sequence[pd.DataFrame], others: pd.DataFrame) -> list[pd.DataFrame]:
    """For each group the rows of ``others`` that agree with one of its runs in all but the probing options."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, key in enumerate(_keys(others)):
        places[key].append(place)
    return [others.iloc[sorted(place for key in {*_keys(group)} for place in places[key])] for group in groups]


def _keys(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(frame[PAIRED_BY].astype(str).itertuples(index=False, name=None))


def _selectivity(group: pd.DataFrame, control: pd.DataFrame, interval: str, chosen: Sequence[str]) -> dict[str, float]:
    heads, controls = sides_of([group, control])
    pairs = pair_runs(heads, controls, [CONTROL], chosen)
    some = len(pairs.ours) > 0
    mean = float(pairs.differences.mean()) if some else np.nan
    half = without_examples(pairs.seeds).half(SEEDS_ALONE)
    low, high = interval_of_mean(interval, mean, half, pairs.differences, pairs.seeds)
    return {
        "control_score": float(pairs.theirs.mean()) if some else np.nan,
        "selectivity": mean,
        "selectivity_low": low,
        "selectivity_high": high,
        "controls": len(pairs.ours),
    }


def _code(blocks: pd.DataFrame, interval: str, average: Sequence[str]) -> dict[str, float]:
    good = blocks[blocks["status"] == "finished"]
    parts = [
        part.drop_duplicates(MDL)  # a table of several sweeps may have a block in each
        for _, part in good.groupby(pd.Series(_keys(good), index=good.index), sort=False)
        if part[MDL].nunique() == MDL_BLOCKS
    ]
    firsts = pd.concat([part.head(1) for part in parts]) if parts else good.head(0)
    sums = [part[[*CODE]].astype(float).sum().to_numpy() for part in parts]
    bits, uniform = np.array(sums, dtype=np.float64).reshape(-1, 2).T  # [codes]
    found = scores_by_seed(firsts, bits, average)
    seeds = seed_error(found.values, [draw for draw, _ in found.seeds], [init for _, init in found.seeds])
    half = without_examples(seeds).half(SEEDS_ALONE)
    low, high = interval_of_mean(interval, found.mean, half, found.values, seeds)
    return {
        "code_bits": found.mean,
        "code_std": found.std,
        "code_low": low,
        "code_high": high,
        "compression": scores_by_seed(firsts, uniform / bits, average).mean,
        "codes": len(parts),
    }
