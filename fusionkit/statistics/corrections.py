"""Corrections of the p-values of m comparisons, so that a level holds for all of them together.

    bonferroni   min(1, m p)
    holm         of the sorted p₁ ≤ … ≤ pₘ: max over j ≤ i of min(1, (m − j + 1) pⱼ) (Holm 1979)
    fdr          min over j ≥ i of m pⱼ / j (Benjamini and Hochberg 1995)

The first two bound the chance of any false positive, however the comparisons depend on each other; ``fdr`` bounds the
expected share of false positives among all positives.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusionkit.statistics.intervals import Floats


def holm(p: Floats) -> Floats:
    """Holm's step-down p-values ``[m]``, in the order given."""
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.arange(len(p), 0, -1) * p[order])
    found = np.empty_like(p)
    found[order] = np.maximum.accumulate(steps)
    return found


def benjamini_hochberg(p: Floats) -> Floats:
    """The p-values ``[m]`` that bound the share of false discoveries, in the order given."""
    from scipy import stats  # takes a second to import

    return np.asarray(stats.false_discovery_control(p, method="bh"), dtype=np.float64)


CORRECTIONS: dict[str, Callable[[Floats], Floats]] = {
    "holm": holm,
    "bonferroni": lambda p: np.minimum(1.0, len(p) * p),
    "fdr": benjamini_hochberg,
    "none": np.copy,
}


def corrected(p: Floats, correction: str) -> Floats:
    """The p-values ``[m]`` under a correction by name. NaN counts as no comparison and stays."""
    found, there = np.copy(p), ~np.isnan(p)
    if there.any():
        found[there] = CORRECTIONS[correction](p[there])
    return found
