"""Two-sided tests that the mean of n paired differences d is 0.

    permutation   the share of sign patterns s in {−1, 1}ⁿ with |Σ sᵢdᵢ| ≥ |Σ dᵢ| (Fisher 1935): every pattern up to
                  n = 20, beyond that 100,000 drawn ones and the observed one, (1 + hits) / (1 + 100,000)
    bootstrap     the share of 100,000 samples of n from d − mean(d), with replacement, whose mean is at least
                  as far from 0 as mean(d), the observed one counted (Efron and Tibshirani 1993, 16.4)
    t             Student's: mean(d) / (s / √n) with n − 1 degrees of freedom; s the standard deviation of d

The permutation test is exact if the two methods are exchangeable within each pair. Its p-value cannot be below 2 / 2ⁿ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fusionkit.statistics.intervals import SEED, Floats, resampled_means, sizes

EXACT = 20  # differences: 2¹⁹ patterns are a few megabytes and milliseconds
RESAMPLES = 100_000
ROUNDING = 1e-12  # sums that differ by less, relative to Σ |dᵢ|, are the same sum added in another order


@dataclass(frozen=True)
class PairedTest:
    """A paired test.

    Attributes:
        p_value: gives the p-value of differences ``[n]``. smallest: gives the least p-value of n differences.
    """

    p_value: Callable[[Floats], float]
    smallest: Callable[[int], float]


def permutation_p(differences: Floats) -> float:
    """p-value of the sign flips of ``differences`` ``[n]``, n ≥ 1."""
    ordered = np.sort(differences)
    least = abs(float(ordered.sum())) - ROUNDING * float(np.abs(ordered).sum())
    if len(ordered) > EXACT:
        return _drawn_p(ordered, least)
    # A pattern of signs and its negation have equally large sums, so the first sign stays as it is.
    sums = ordered[:1]
    for value in ordered[1:]:
        sums = np.concatenate([sums + value, sums - value])
    return float(np.mean(np.abs(sums) >= least))


def _drawn_p(ordered: Floats, least: float) -> float:
    rng, hits = np.random.default_rng(SEED), 0
    for size in sizes(RESAMPLES, len(ordered)):
        signs = rng.integers(2, size=(size, len(ordered)), dtype=np.int8) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ ordered) >= least))
    return (1 + hits) / (1 + RESAMPLES)


def bootstrap_p(differences: Floats) -> float:
    """p-value of the shifted bootstrap of ``differences`` ``[n]``, n ≥ 1."""
    mean = float(np.mean(differences))
    least = abs(mean) - ROUNDING * float(np.abs(differences).sum())
    hits = np.count_nonzero(np.abs(resampled_means(differences - mean, RESAMPLES)) >= least)
    return (1 + int(hits)) / (1 + RESAMPLES)


def smallest_permutation_p(n: int) -> float:
    """The p-value of n differences that all have one sign."""
    return 2.0 ** (1 - n) if n <= EXACT else 1 / (1 + RESAMPLES)


def smallest_bootstrap_p(n: int) -> float:
    """The p-value if no sample's mean is as far from 0 as the observed mean, which is possible for every n."""
    return 1 / (1 + RESAMPLES)


def student_p(differences: Floats) -> float:
    """p-value of Student's paired test of ``differences`` ``[n]``; 1 for fewer than two."""
    if (n := len(differences)) < 2:
        return 1.0
    ordered = np.sort(differences)  # the order in which runs ended must not matter
    return student_tails(float(np.mean(ordered)), float(np.std(ordered, ddof=1) / np.sqrt(n)), n - 1)


def student_tails(mean: float, error: float, freedom: float) -> float:
    """The two-sided p-value of a mean with this standard error and these degrees of freedom."""
    from scipy.special import stdtr  # scipy.stats takes a second to import

    if abs(mean) <= ROUNDING:  # equal scores, added in another order, over an error of 0 would be significant
        return 1.0
    return 0.0 if error == 0.0 else 2 * float(stdtr(freedom, -abs(mean) / error))


TESTS = {
    "permutation": PairedTest(permutation_p, smallest_permutation_p),
    "bootstrap": PairedTest(bootstrap_p, smallest_bootstrap_p),
    "t": PairedTest(student_p, lambda n: 0.0),
}
