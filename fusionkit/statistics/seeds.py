"""Standard errors of a mean over seeds: of training draws, of initial weights, and of both where they are crossed.

    one way     V = s² Σ_d w_d²,  ν = n − 1                      of n draws, after averaging the runs of each draw
    crossed     V = max(MS_d + MS_i − MS_r, MS_d, MS_i) / (K M),     K draws × M init seeds, each pair trained once
                ν = (K M V)² / (MS_d² / (K − 1) + MS_i² / (M − 1) + MS_r² / ((K − 1)(M − 1)))
                σ_d² = (MS_d − MS_r) / M,  σ_i² = (MS_i − MS_r) / K,  σ_r² = MS_r      each at least 0
    sets        Σ_g w_g² V_g,  ν = (Σ_g w_g² V_g)² / Σ_g (w_g² V_g)² / ν_g      of several data sets, which are fixed

Symbols: ``s`` the standard deviation of the n means; ``w_d`` the share of draw d in the mean, 1 / n if all are equal;
``MS_d``, ``MS_i``, ``MS_r`` the mean squares of draws, init seeds and the rest; ``w_g`` the share of data set g. K · M
crossed runs are not independent: several of them have the same draw, or the same initial weights. Where runs of a grid
are missing, V is the larger of the one-way errors by draw and by init seed. With a single draw n counts init seeds, and
the error holds for that draw.

In a mean over runs a draw has the share of its runs. In a mean difference of pairs all draws have equal shares, however
many pairs they have. With unequal shares V is unbiased if the means of draws vary alike, and too large if most of the
variation is within draws.
Source: Searle, Casella and McCulloch (1992), 4.7; Satterthwaite (1946) for ν.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusionkit.statistics.intervals import Floats


@dataclass(frozen=True)
class SeedError:
    """The error of a mean over new seeds.

    Attributes:
        variance: of the mean; NaN for a single seed. freedom: its degrees of freedom. of_draws, of_inits, of_rest:
            standard deviations of scores if draws and init seeds are a full grid, else NaN. crossed: whether several
            draws have the same init seed, so that the means of draws are not independent.
    """

    variance: float
    freedom: float
    of_draws: float = np.nan
    of_inits: float = np.nan
    of_rest: float = np.nan
    crossed: bool = False

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float(np.sqrt(self.variance))


NONE = SeedError(np.nan, np.nan)


def seed_error(
    values: Floats,
    draws: Sequence[int],
    inits: Sequence[int],
    sets: Sequence[str] | None = None,
    weights: Floats | None = None,
) -> SeedError:
    """The error of the mean of ``values`` ``[n]`` of runs with these seeds, on these data sets if there are several.
    ``weights`` ``[n]`` are the weights of the values in the mean; None means equal ones.
    """
    weights = np.ones(len(values)) if weights is None else weights
    if sets is not None and len(set(sets)) > 1:
        return _of_sets(values, np.asarray(draws), np.asarray(inits), np.asarray(sets), weights)
    rows, columns = np.unique(np.asarray(draws), return_inverse=True)[1], np.unique(inits, return_inverse=True)[1]
    draw_count, init_count = int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1
    if draw_count < 2:
        return _one_way(values, columns, init_count, weights)
    by_draw = _one_way(values, rows, draw_count, weights)
    if init_count < 2 or all(len(set(rows[columns == one])) == 1 for one in range(init_count)):
        return by_draw  # each init seed is in one draw only, or all draws have the same one
    grid = len(values) == draw_count * init_count == len({*zip(rows, columns, strict=True)})
    if not grid or not np.allclose(weights, weights[0]):
        by_init = _one_way(values, columns, init_count, weights)
        return replace(max(by_draw, by_init, key=lambda one: one.variance), crossed=True)
    table = np.empty((draw_count, init_count))
    table[rows, columns] = values
    return _crossed(table)


def _one_way(values: Floats, group: np.ndarray, groups: int, weights: Floats) -> SeedError:
    if groups < 2:
        return NONE
    sums = np.bincount(group, weights=weights)
    means, shares = np.bincount(group, weights=weights * values) / sums, sums / sums.sum()
    return SeedError(float(np.var(means, ddof=1) * (shares**2).sum()), groups - 1.0)


def _crossed(table: Floats) -> SeedError:
    """The error of the mean of crossed scores ``[draws, init seeds]``."""
    draws, inits = table.shape
    by_draw, by_init, mean = table.mean(1), table.mean(0), table.mean()
    rest = table - by_draw[:, None] - by_init + mean
    ms_draws, ms_inits = inits * float(by_draw.var(ddof=1)), draws * float(by_init.var(ddof=1))
    ms_rest = float((rest**2).sum()) / ((draws - 1) * (inits - 1))
    whole = max(ms_draws + ms_inits - ms_rest, ms_draws, ms_inits)
    parts = ms_draws**2 / (draws - 1) + ms_inits**2 / (inits - 1) + ms_rest**2 / ((draws - 1) * (inits - 1))
    return SeedError(
        variance=whole / table.size,
        freedom=whole**2 / parts if parts else np.nan,
        of_draws=float(np.sqrt(max((ms_draws - ms_rest) / inits, 0.0))),
        of_inits=float(np.sqrt(max((ms_inits - ms_rest) / draws, 0.0))),
        of_rest=float(np.sqrt(ms_rest)),
        crossed=True,
    )


def _of_sets(values: Floats, draws: np.ndarray, inits: np.ndarray, sets: np.ndarray, weights: Floats) -> SeedError:
    variance, parts, crossed = 0.0, 0.0, False
    for one in np.unique(sets):
        here = sets == one
        own = seed_error(values[here], draws[here].tolist(), inits[here].tolist(), weights=weights[here])
        crossed = crossed or own.crossed
        share = float(weights[here].sum() / weights.sum()) ** 2 * own.variance
        variance += share
        parts += share**2 / own.freedom if share else 0.0
    return SeedError(variance, variance**2 / parts if parts else np.nan, crossed=crossed)
