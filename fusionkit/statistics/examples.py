"""Differences of two methods over test examples, and over seeds and test examples together.

Runs of S seeds, paired, answer the same E examples. Of each run and example a few counts are kept whose sums over
examples give the score: right answers of so many; right, found and gold spans; and so on (:data:`SCORES`).

    randomisation   the share of 2ᴱ swaps w in {0, 1}ᴱ with |Δ(w)| ≥ |Δ(0)|; w swaps an example's counts between the two
                    methods in all seeds at once, Δ is the mean over seeds of the difference of their scores (Noreen
                    1989; Yeh 2000): every swap up to E = 12, beyond that 10,000 drawn ones, (1 + hits) / 10,001
    mcnemar         of one run a side: the binomial test of the examples that one side alone got right (McNemar 1947)
    two-way         x_se = Δ_s + (E Δ_s − (E − 1) Δ_s,−e) − their mean over e    (jackknife; Tukey 1958)
                    V = max(MS_s + MS_e − MS_r, MS_s, MS_e) / (S E),     t = Δ / √V with Satterthwaite's (1946)
                    ν = (S E V)² / (MS_s² / (S − 1) + MS_e² / (E − 1) + MS_r² / ((S − 1)(E − 1)))

Symbols: ``Δ_s`` the difference of scores in seed s, ``Δ_s,−e`` without example e; ``MS_s``, ``MS_e``, ``MS_r`` the mean
squares of seeds, examples and the rest in the table x (Searle, Casella and McCulloch 1992, 4.7). V speaks of new seeds
**and** new examples; the first two tests of new examples for these seeds. By chance three seeds are often closer to
each other than others would be. So the interval is never narrower than Student's over the seeds, and p never less than
that interval's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fusionkit.metrics import LARGEST_EXPONENT
from fusionkit.statistics.intervals import BLOCK, LEVEL, SEED, Floats

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
SCORES: dict[str, Callable[[Floats], Floats]] = {
    "accuracy": _share, "word_accuracy": _share, "precision": _share, "recall": _share, "frame": _share,
    "f1": _f1, "micro_f1": _f1, "positive_f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews,
    "pearson": _pearson, "spearman": _pearson, "cross_entropy": _share, "perplexity": _perplexity,
}  # fmt: skip


@dataclass(frozen=True)
class TwoWay:
    """The difference of two methods.

    Attributes:
        mean: ours − theirs, the mean over seeds. of_seeds, of_examples, of_both: its standard error where seeds,
            examples or both are drawn anew; no number for a single seed or example. freedom: degrees of freedom of
            ``of_both``. low, high: its 95 % interval by ``of_both``. p: of the hypothesis that there is none.
    """

    mean: float
    of_seeds: float
    of_examples: float
    of_both: float
    freedom: float
    low: float
    high: float
    p: float


def two_way(metric: str, ours: Floats, theirs: Floats) -> TwoWay:
    """The difference over seeds and examples, from counts ``[seeds, examples, k]`` of each side."""
    table = _pseudo_values(metric, ours) - _pseudo_values(metric, theirs)  # [S, E]
    seeds, examples = table.shape
    rows, columns, mean = table.mean(1), table.mean(0), float(table.mean())
    of_seeds = float(rows.std(ddof=1)) / np.sqrt(seeds) if seeds > 1 else np.nan
    of_examples = float(columns.std(ddof=1)) / np.sqrt(examples) if examples > 1 else np.nan
    if seeds < 2 or examples < 2:
        return TwoWay(mean, of_seeds, of_examples, np.nan, np.nan, np.nan, np.nan, np.nan)
    rest = table - rows[:, None] - columns + mean
    squares = examples * rows.var(ddof=1), seeds * columns.var(ddof=1), (rest**2).sum() / (seeds - 1) / (examples - 1)
    of_rows, of_columns, of_rest = map(float, squares)
    whole = max(of_rows + of_columns - of_rest, of_rows, of_columns)
    error = float(np.sqrt(whole / (seeds * examples)))
    if error == 0.0:
        return TwoWay(mean, of_seeds, of_examples, 0.0, np.nan, mean, mean, float(mean == 0))
    parts = of_rows**2 / (seeds - 1) + of_columns**2 / (examples - 1) + of_rest**2 / (seeds - 1) / (examples - 1)
    freedom = whole**2 / parts
    tail = (1 + LEVEL) / 2
    half = max(float(stats.t.ppf(tail, freedom)) * error, float(stats.t.ppf(tail, seeds - 1)) * of_seeds)
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom))
    if of_seeds:
        p = max(p, 2 * float(stats.t.sf(abs(mean) / of_seeds, seeds - 1)))
    return TwoWay(mean, of_seeds, of_examples, error, freedom, mean - half, mean + half, p)


def _pseudo_values(metric: str, counts: Floats) -> Floats:
    """``Δ_s`` plus what each example adds to it, ``[seeds, examples]``; the mean over examples is the seed's score."""
    sums, examples = counts.sum(1, keepdims=True), counts.shape[1]
    score = SCORES[metric](sums)  # [S, 1]
    if examples < 2:
        return score
    without = SCORES[metric](sums - counts)  # [S, E]
    found: Floats = score - (examples - 1) * (without - without.mean(1, keepdims=True))
    return found


def randomisation_p(metric: str, ours: Floats, theirs: Floats) -> float:
    """p-value of swapping examples between the sides, from counts ``[seeds, examples, k]`` of each."""
    seeds, examples, width = ours.shape
    sums = ours.sum(1), theirs.sum(1)  # [S, k]
    moved = (theirs - ours).transpose(1, 0, 2).reshape(examples, seeds * width)  # [E, S · k]
    score = SCORES[metric]

    def far(swaps: Floats) -> Floats:
        shift = (swaps @ moved).reshape(len(swaps), seeds, width)
        found: Floats = np.abs((score(sums[0] + shift) - score(sums[1] - shift)).mean(-1))
        return found

    least = float(far(np.zeros((1, examples)))[0]) - ROUNDING
    if examples <= EXACT:
        every = np.array(list(itertools.product((0.0, 1.0), repeat=examples)))
        return float((far(every) >= least).mean())
    rng, hits, block = np.random.default_rng(SEED), 0, max(1, BLOCK // examples)
    for start in range(0, SWAPS, block):
        swaps = rng.integers(2, size=(min(block, SWAPS - start), examples)).astype(np.float64)
        hits += int((far(swaps) >= least).sum())
    return (1 + hits) / (1 + SWAPS)


def mcnemar_p(ours: Floats, theirs: Floats) -> float:
    """p-value of one run a side, from right or wrong ``[examples]`` of each."""
    ours_alone, theirs_alone = int(((ours > 0) & (theirs == 0)).sum()), int(((theirs > 0) & (ours == 0)).sum())
    if not ours_alone + theirs_alone:
        return 1.0
    return float(stats.binomtest(ours_alone, ours_alone + theirs_alone).pvalue)
