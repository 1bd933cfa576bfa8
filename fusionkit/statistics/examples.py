"""Tests and errors of differences of two methods over test examples, and over seeds and test examples together.

Paired runs of S seeds answer the same E examples. For each run and example there are a few counts whose sums over
examples give the score: right answers and all answers; right, found and gold spans; and so on (:data:`SCORES`).

    randomisation   the share of 2ᴱ swaps w in {0, 1}ᴱ with |Δ(w)| ≥ |Δ(0)|; w swaps an example's counts between the two
                    methods in all seeds at once, Δ is the mean over seeds of the difference of their scores (Noreen
                    1989; Yeh 2000): every swap up to E = 12, beyond that 10,000 drawn ones, (1 + hits) / 10,001
    mcnemar         for one run per side: the binomial test of the examples that only one side got right (McNemar 1947)
    two-way         x_se = Δ_s + (E Δ_s − (E − 1) Δ_s,−e) − their mean over e    (jackknife; Tukey 1958)
                    V = max(V_s + V_e − V_r, V_s, V_e),     t = Δ / √V with Satterthwaite's (1946)
                    ν = V² / (V_s² / ν_s + V_e² / (E − 1) + V_r² / ((S − 1)(E − 1)))

Symbols: ``Δ_s`` the difference of scores in seed s, ``Δ_s,−e`` without example e; ``V_s`` and ``ν_s`` the variance over
seeds (:mod:`fusionkit.statistics.seeds`); ``V_e`` and ``V_r`` the mean squares of examples and of the interaction of
seeds and examples in the table x, each divided by S E (Searle, Casella and McCulloch 1992, 4.7). Seeds may have other
shares w_s of the mean than 1 / S: ``V_e`` is then the variance over e of Σ_s w_s x_se, divided by E, and ``V_r`` the
mean square of the interaction times Σ_s w_s² / E. Of several test sets, ``V_e`` and ``V_r`` are the sums of w_g² times
those of set g, where ``w_g`` is its share of the mean; ν has a term for each set. Tables over the same examples, such
as two columns of labels of one store, are one set in ``V_e``: x is first averaged over them example by example. The
mean score of one method has the same errors, with its score in the place of Δ. V is for new seeds **and** new examples;
the first two tests are for new examples and these seeds. A few seeds, such as three, are often closer to each other by
chance than other seeds would be. So the two-way interval is never narrower than Student's over the seeds, and its
p-value never below that of Student's test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from fusionkit.metrics import LARGEST_EXPONENT
from fusionkit.statistics.intervals import LEVEL, SEED, Floats, sizes, student_half
from fusionkit.statistics.paired import student_tails
from fusionkit.statistics.seeds import SeedError

Score = Callable[[Floats], Floats]

SWAPS = 10_000
EXACT = 12  # examples: 4,096 swaps
ROUNDING = 1e-12  # differences of scores that differ by less are the same, added in another order


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros(np.broadcast(top, bottom).shape), where=bottom != 0)


def _share(sums: Floats) -> Floats:
    return _ratio(sums[..., 0], sums[..., 1])


def _f1(sums: Floats) -> Floats:
    return _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _macro_f1(sums: Floats) -> Floats:
    right, told, found = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    there = told + found > 0
    return _ratio((_ratio(2 * right, told + found) * there).sum(-1), there.sum(-1).astype(np.float64))


def _matthews(sums: Floats) -> Floats:
    right, told, found = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    count = told.sum(-1)
    spread = (count**2 - (found**2).sum(-1)) * (count**2 - (told**2).sum(-1))
    return _ratio(count * right.sum(-1) - (told * found).sum(-1), np.sqrt(np.maximum(spread, 0)))


def _pearson(sums: Floats) -> Floats:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (n * xx - x**2) * (n * yy - y**2)
    return _ratio(n * xy - x * y, np.sqrt(np.maximum(spread, 0)))


def _perplexity(sums: Floats) -> Floats:
    found: Floats = np.exp(np.minimum(_share(sums), LARGEST_EXPONENT))
    return found


# Scores ``[…]`` from sums of counts ``[…, k]``: accuracy, precision and recall of (right, all); f1 of (right, found,
# told); macro F1 and Matthews' correlation of (right, told, found) of each class; correlations of
# (1, x, y, x², y², x y); cross-entropy of (nats, 1).
SCORES: dict[str, Score] = {
    "accuracy": _share, "word_accuracy": _share, "precision": _share, "recall": _share, "frame": _share,
    "f1": _f1, "micro_f1": _f1, "positive_f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews,
    "pearson": _pearson, "spearman": _pearson, "cross_entropy": _share, "perplexity": _perplexity,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Answered:
    """The part of one test set in a mean, or in a difference of means.

    Attributes:
        values: :func:`pseudo_values` ``[S, E]`` of S runs; of S pairs, the differences of theirs. weight: the share of
            this test set. examples: equal for tables over the same examples; None where no other table has these.
        rows: the weight of each run or pair within the set, ``[S]``; None means equal ones.
    """

    values: Floats
    weight: float = 1.0
    examples: Hashable = None
    rows: Floats | None = None

    @property
    def shares(self) -> Floats:
        """The share of each run or pair in the whole mean, ``[S]``."""
        rows = np.ones(len(self.values)) if self.rows is None else self.rows
        found: Floats = self.weight * rows / rows.sum()
        return found

    @property
    def by_example(self) -> Floats:
        """What each example adds to the whole mean, ``[E]``."""
        found: Floats = self.shares @ self.values
        return found


@dataclass(frozen=True)
class TwoWay:
    """Standard errors of a mean or of a difference.

    Attributes:
        of_seeds, of_examples, of_both: over new seeds, new test examples or both; NaN for a single seed or example.
        freedom, examples_freedom: degrees of freedom of ``of_both`` and ``of_examples``. seeds: the error over seeds in
            full. test_examples: their number.
    """

    of_seeds: float
    of_examples: float
    of_both: float
    freedom: float
    examples_freedom: float
    seeds: SeedError
    test_examples: int

    def half(self, over: str, level: float = LEVEL) -> float:
        """Half the width of the interval over ``seeds``, ``examples`` or ``both``."""
        by_seeds = student_half(self.of_seeds, self.seeds.freedom, level)
        if over == "seeds":
            return by_seeds
        if over == "examples":
            return student_half(self.of_examples, self.examples_freedom, level)
        if np.isnan(self.of_both):  # `max` would not always give NaN
            return np.nan
        return max(student_half(self.of_both, self.freedom, level), by_seeds)

    def p_value(self, mean: float, over: str) -> float:
        """The p-value of Student's test that the difference is 0; for ``both`` it is never less than over seeds."""
        if over == "examples":
            return student_tails(mean, self.of_examples, self.examples_freedom)
        by_seeds = student_tails(mean, self.of_seeds, self.seeds.freedom)
        return by_seeds if over == "seeds" else max(student_tails(mean, self.of_both, self.freedom), by_seeds)


def two_way(tables: Sequence[Answered], seeds: SeedError) -> TwoWay:
    """The standard errors over seeds and examples. Several test sets are fixed: the errors hold for these test sets."""
    v_seeds, v_examples, v_rest, test_examples = seeds.variance, 0.0, 0.0, 0
    satterthwaite, by_examples = v_seeds**2 / seeds.freedom if v_seeds else 0.0, 0.0  # Σ V² / ν
    sets: dict[Hashable, list[Answered]] = {}
    for number, table in enumerate(tables):
        sets.setdefault(number if table.examples is None else table.examples, []).append(table)
    for alike in sets.values():
        own, sizes = _over_examples(alike), [table.values.shape[1] for table in alike]
        test_examples += max(sizes)
        v_examples += own
        by_examples += own**2 / max(min(sizes) - 1, 1)
        for x, shares in ((table.values, table.shares) for table in alike if min(table.values.shape) > 1):
            rest = x - x.mean(1, keepdims=True) - x.mean(0) + x.mean()
            freedom = (x.shape[0] - 1) * (x.shape[1] - 1)
            own_rest = float((shares**2).sum()) * (float((rest**2).sum()) / freedom) / x.shape[1]
            v_rest += own_rest
            satterthwaite += own_rest**2 / freedom
    satterthwaite += by_examples
    v_both = np.nan if np.isnan(v_seeds) else max(v_seeds + v_examples - v_rest, v_seeds, v_examples)
    return TwoWay(
        of_seeds=seeds.error,
        of_examples=float(np.sqrt(v_examples)),
        of_both=float(np.sqrt(v_both)),
        freedom=v_both**2 / satterthwaite if satterthwaite else np.nan,
        examples_freedom=v_examples**2 / by_examples if by_examples else np.nan,
        seeds=seeds,
        test_examples=test_examples,
    )


def _over_examples(tables: Sequence[Answered]) -> float:
    """The variance over new examples of what tables over the same examples add to a mean. If some examples lack a label
    in one of them, so that their numbers differ, it is the largest that is possible.
    """
    sizes = {table.values.shape[1] for table in tables}
    if min(sizes) < 2:
        return np.nan
    if len(sizes) > 1:
        return sum(float(np.sqrt(x.var(ddof=1) / len(x))) for x in (table.by_example for table in tables)) ** 2
    by_example: Floats = np.sum([table.by_example for table in tables], axis=0)
    return float(by_example.var(ddof=1)) / len(by_example)


def pseudo_values(score: Score, counts: Floats) -> Floats:
    """A run's score plus what each example adds to it (jackknife), ``[E]``, from counts ``[E, k]``; their mean is the
    score.
    """
    sums, examples = counts.sum(0), len(counts)
    whole = score(sums)
    if examples < 2:
        return np.full(examples, whole)
    without = score(sums - counts)  # [E]
    found: Floats = whole - (examples - 1) * (without - without.mean())
    return found


def randomisation_p(score: Score, ours: Floats, theirs: Floats, weights: Floats | None = None) -> float:
    """p-value of swapping examples between the sides, from counts ``[runs, examples, k]`` of each. ``weights``
    ``[runs]`` are those of pairs of runs in the mean difference; None means equal ones.
    """
    seeds, examples, width = ours.shape
    sums = ours.sum(1), theirs.sum(1)  # [S, k]
    moved = (theirs - ours).transpose(1, 0, 2).reshape(examples, seeds * width)  # [E, S · k]

    def far(swaps: Floats) -> Floats:
        shift = (swaps @ moved).reshape(len(swaps), seeds, width)
        differences = score(sums[0] + shift) - score(sums[1] - shift)  # [swaps, S]
        found: Floats = np.abs(np.average(differences, axis=-1, weights=weights))
        return found

    least = float(far(np.zeros((1, examples)))[0]) - ROUNDING
    if examples <= EXACT:
        every = np.array(list(itertools.product((0.0, 1.0), repeat=examples)))
        return float((far(every) >= least).mean())
    rng, hits = np.random.default_rng(SEED), 0
    for size in sizes(SWAPS, max(examples, seeds * width)):
        swaps = rng.integers(2, size=(size, examples)).astype(np.float64)
        hits += int((far(swaps) >= least).sum())
    return (1 + hits) / (1 + SWAPS)


def mcnemar_p(ours: Floats, theirs: Floats) -> float:
    """McNemar's p-value for one run per side, from right or wrong ``[examples]`` of each."""
    ours_alone, theirs_alone = int(((ours > 0) & (theirs == 0)).sum()), int(((theirs > 0) & (ours == 0)).sum())
    if not ours_alone + theirs_alone:
        return 1.0
    from scipy import stats  # takes a second to import

    return float(stats.binomtest(ours_alone, ours_alone + theirs_alone).pvalue)
