"""95 % intervals of a mean.

    t           m ± t(0.975; n − 1) · s / √n
    bootstrap   the 2.5 % and 97.5 % quantiles of the means of 10,000 samples of n with replacement (Efron 1979)

n numbers with mean m and standard deviation s (n − 1); t is Student's quantile. One number has no interval.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from fusionkit.statistics.resampling import Floats, resampled_means

LEVEL = 0.95
RESAMPLES = 10_000
NONE = (float("nan"), float("nan"))


def t_interval(values: Floats) -> tuple[float, float]:
    """Student's interval of the mean of ``values`` ``[n]``; no numbers for fewer than two."""
    n = len(values)
    if n < 2:
        return NONE
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / np.sqrt(n)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * error)
    return mean - half, mean + half


def bootstrap_interval(values: Floats) -> tuple[float, float]:
    """The percentile interval of the mean of ``values`` ``[n]``; no numbers for fewer than two."""
    if len(values) < 2:
        return NONE
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled_means(values, RESAMPLES), [tail, 1 - tail])
    return float(low), float(high)


INTERVALS: dict[str, Callable[[Floats], tuple[float, float]]] = {"t": t_interval, "bootstrap": bootstrap_interval}
