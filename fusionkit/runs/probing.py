"""Adds the results of probing runs to the groups of a summary: selectivity, and the length of an online code.

    selectivity = mean of (score − control score) over pairs           (Hewitt and Liang 2019)
    L_online = Σ over blocks of −log₂ p, and t_1 b of the first        compression = L_uniform / L_online
                                                                       (Voita and Titov 2020)

A pair is a run and its control run, which agree in all options and both seeds. The difference and its interval are
computed as for other pairs (:mod:`fusionkit.runs.comparison.pairing`). A code is the sum over blocks that agree with a
run in the same way (symbols: :mod:`fusionkit.dataset.online_code`). There is one code per seed; the interval is that
of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fusionkit.runs.comparison.pairing import pair_runs, sides_of
from fusionkit.runs.record import CODE
from fusionkit.runs.summary import AXES, SEEDS, RunGroups, without_stopped
from fusionkit.specs import MDL_BLOCKS
from fusionkit.statistics import INTERVALS

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
        ``compression`` and ``codes``, the number of seeds whose blocks have all ended.
    """
    every = without_stopped(every)
    if CONTROL not in every:
        return summary
    control, blocks = every[every[CONTROL].astype(bool)], every[every[MDL].notna()]
    found = [summary]
    if len(control):
        rows = [_selectivity(group, _twins(group, control), interval, groups.chosen) for group in groups.runs]
        found.append(pd.DataFrame(rows, columns=list(SELECTIVITY)))
    if len(blocks):
        rows = [_code(_twins(group, blocks), interval) for group in groups.runs]
        found.append(pd.DataFrame(rows, columns=list(CODES)))
    whole = pd.concat(found, axis=1)
    whole.attrs |= summary.attrs
    return whole


def _twins(group: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``others`` that agree with a run of the group in all but the probing options."""
    ours = set(_keys(group))
    kept: pd.DataFrame = others[[key in ours for key in _keys(others)]]
    return kept


def _keys(frame: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(frame[PAIRED_BY].astype(str).itertuples(index=False, name=None))


def _selectivity(group: pd.DataFrame, control: pd.DataFrame, interval: str, chosen: Sequence[str]) -> dict[str, float]:
    heads, controls = sides_of([group, control])
    pairs = pair_runs(heads, controls, [CONTROL], chosen)
    low, high = INTERVALS[interval](pairs.differences)
    some = len(pairs.ours) > 0
    return {
        "control_score": float(pairs.theirs.mean()) if some else np.nan,
        "selectivity": float(pairs.differences.mean()) if some else np.nan,
        "selectivity_low": low,
        "selectivity_high": high,
        "controls": len(pairs.ours),
    }


def _code(blocks: pd.DataFrame, interval: str) -> dict[str, float]:
    good = blocks[blocks["status"] == "finished"]
    sums = [
        part[[*CODE]].astype(float).sum().to_numpy()
        for _, part in good.groupby(pd.Series(_keys(good), index=good.index), sort=False)
        if part[MDL].nunique() == MDL_BLOCKS
    ]
    codes = np.array(sums, dtype=np.float64).reshape(-1, 2)  # [seeds, online and uniform]
    bits, n = codes[:, 0], len(codes)
    low, high = INTERVALS[interval](bits)
    return {
        "code_bits": float(bits.mean()) if n else np.nan,
        "code_std": float(bits.std(ddof=1)) if n > 1 else np.nan,
        "code_low": low,
        "code_high": high,
        "compression": float((codes[:, 1] / bits).mean()) if n else np.nan,
        "codes": n,
    }
