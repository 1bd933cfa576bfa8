"""Means of samples drawn with replacement, the same for the same numbers in any order.

The numbers are sorted and the generator begins anew with :data:`SEED` each time, so a result depends neither on the
order in which runs ended nor on what was computed before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SEED = 0
BLOCK = 2_000_000  # numbers held at once

Floats = NDArray[np.float64]


def sizes(count: int, n: int) -> Iterator[int]:
    """Parts of ``count`` samples of ``n`` numbers that memory holds."""
    part = max(1, BLOCK // n)
    for begin in range(0, count, part):
        yield min(part, count - begin)


def resampled_means(values: Floats, count: int) -> Floats:
    """Means of ``count`` samples with replacement, as large as ``values`` ``[n]``; ``[count]``."""
    ordered, n = np.sort(values), len(values)
    rng = np.random.default_rng(SEED)
    return np.concatenate([ordered[rng.integers(n, size=(size, n))].mean(axis=1) for size in sizes(count, n)])
