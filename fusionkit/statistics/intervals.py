"""95 % intervals of a mean.

    t           m ± t(0.975; n − 1) · s / √n
    bootstrap   the 2.5 % and 97.5 % quantiles of the means of 10,000 samples of n with replacement (Efron 1979)

n independent numbers with mean m and standard deviation s (n − 1); t is Student's quantile. One number has no interval.

Samples are the same for the same numbers in any order: the numbers are sorted and the generator begins anew with
:data:`SEED` each time, so a result depends neither on the order in which runs ended nor on what was computed before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SEED = 0
BLOCK = 2_000_000  # numbers held in memory at once
LEVEL = 0.95
RESAMPLES = 10_000
NONE = (float("nan"), float("nan"))


def student_half(error: float, freedom: float, level: float = LEVEL) -> float:
    """Half the width of Student's interval: the quantile times the standard error; 0 where nothing varies."""
    from scipy.special import stdtrit  # scipy.stats, whose t.ppf calls it, takes a second to import

    return 0.0 if error == 0.0 else float(stdtrit(freedom, (1 + level) / 2)) * error


def bootstrap_interval(values: Floats) -> tuple[float, float]:
    """The percentile interval of the mean of ``values`` ``[n]``; NaN for fewer than two."""
    if len(values) < 2:
        return NONE
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled_means(values, RESAMPLES), [tail, 1 - tail])
    return float(low), float(high)


def sizes(count: int, n: int) -> Iterator[int]:
    """Sizes of the parts in which to draw ``count`` samples of ``n`` numbers, so that a part fits in memory."""
    part = max(1, BLOCK // n)
    for begin in range(0, count, part):
        yield min(part, count - begin)


def resampled_means(values: Floats, count: int) -> Floats:
    """Means ``[count]`` of samples with replacement from ``values`` ``[n]``, n numbers each."""
    ordered, n = np.sort(values), len(values)
    rng = np.random.default_rng(SEED)
    return np.concatenate([ordered[rng.integers(n, size=(size, n))].mean(axis=1) for size in sizes(count, n)])
