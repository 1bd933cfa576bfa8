"""Differences over test examples, and over seeds and examples, against counting, formulas and simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fusionkit.ragged import IntArray
from fusionkit.statistics import TESTS
from fusionkit.statistics.examples import SCORES, mcnemar_p, randomisation_p, two_way
from fusionkit.statistics.intervals import Floats

RNG = np.random.default_rng(0)


def shares(right: Floats) -> Floats:
    """Counts of accuracy, ``[…, examples, 2]``, from right answers ``[…, examples]``."""
    return np.stack([right, np.ones_like(right)], -1)


def of_classes(gold: IntArray, found: IntArray, classes: int) -> Floats:
    """Counts of right, told and found of each class, ``[1, examples, 3 · classes]``."""
    told, said = np.eye(classes)[gold], np.eye(classes)[found]
    return np.concatenate([told * said, told, said], -1)[None]


def test_scores_of_sums_are_scikit_learns() -> None:
    gold, found = RNG.integers(3, size=50), RNG.integers(3, size=50)
    counts = of_classes(gold, found, 4).sum(1)
    assert SCORES["macro_f1"](counts)[0] == pytest.approx(f1_score(gold, found, average="macro"))
    assert SCORES["matthews"](counts)[0] == pytest.approx(matthews_corrcoef(gold, found))
    right = shares((gold == found).astype(float)).sum(0)
    assert SCORES["accuracy"](right) == pytest.approx(accuracy_score(gold, found))
    x, y = RNG.normal(size=(2, 30))
    sums = np.stack([np.ones(30), x, y, x * x, y * y, x * y], -1).sum(0)
    assert SCORES["pearson"](sums) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert SCORES["f1"](np.array([0.0, 0.0, 4.0])) == SCORES["f1"](np.zeros(3)) == 0.0


def test_swapping_sentences_is_what_counting_every_swap_gives() -> None:
    seeds, sentences = 2, 8
    gold = RNG.integers(1, 5, size=sentences)
    sides = []
    for skill in (0.9, 0.5):
        found = RNG.integers(1, 6, size=(seeds, sentences))
        right = np.minimum((RNG.random((seeds, sentences)) < skill) * found, gold)
        sides.append(np.stack([right, found, np.broadcast_to(gold, found.shape)], -1).astype(float))
    ours, theirs = sides

    def difference(swap: tuple[int, ...]) -> float:
        one, other = (
            np.where(np.array(swap)[None, :, None], theirs, ours),
            np.where(np.array(swap)[None, :, None], ours, theirs),
        )
        f1 = [[2 * a.sum(0)[0] / (a.sum(0)[1] + a.sum(0)[2]) for a in side] for side in (one, other)]
        return abs(float(np.mean(f1[0])) - float(np.mean(f1[1])))

    least = difference((0,) * sentences) - 1e-12
    wanted = np.mean([difference(swap) >= least for swap in itertools.product((0, 1), repeat=sentences)])
    assert randomisation_p("f1", ours, theirs) == pytest.approx(float(wanted))


def test_many_examples_are_swapped_at_random_and_always_in_the_same_way() -> None:
    right = (RNG.random((2, 3, 200)) < np.array([0.8, 0.72])[:, None, None]).astype(float)
    found = [randomisation_p("accuracy", *map(shares, right)) for _ in range(2)]
    assert found[0] == found[1]
    # Each seed's examples together: the normal approximation of the swap test.
    differences = (right[0] - right[1]).mean(0)
    z = abs(differences.sum()) / np.sqrt((differences**2).sum())
    assert found[0] == pytest.approx(2 * stats.norm.sf(z), abs=0.02)


def test_mcnemar_counts_what_one_side_alone_got_right() -> None:
    ours, theirs = np.array([1, 1, 1, 1, 1, 0, 0, 1.0]), np.array([1, 0, 0, 0, 0, 0, 1, 1.0])
    assert mcnemar_p(ours, theirs) == pytest.approx(stats.binomtest(4, 5).pvalue)
    assert mcnemar_p(ours, ours) == 1.0


def test_the_two_way_error_is_that_of_the_table_of_differences() -> None:
    ours, theirs = (RNG.random((2, 4, 25)) < 0.6).astype(float)
    found = two_way("accuracy", shares(ours), shares(theirs))
    table = ours - theirs  # accuracy is a mean: what the jackknife gives is the table itself
    rows, columns = table.mean(1), table.mean(0)
    rest = ((table - rows[:, None] - columns + table.mean()) ** 2).sum() / (3 * 24)
    whole = max(25 * rows.var(ddof=1) + 4 * columns.var(ddof=1) - rest, 25 * rows.var(ddof=1), 4 * columns.var(ddof=1))
    assert found.mean == pytest.approx(table.mean())
    assert found.of_both == pytest.approx(np.sqrt(whole / 100))
    assert found.of_seeds == pytest.approx(stats.sem(rows))
    assert found.of_examples == pytest.approx(stats.sem(columns))
    assert found.low < found.mean < found.high
    assert (found.p <= 0.05) == (found.low > 0 or found.high < 0)


def test_a_single_seed_has_an_error_over_examples_alone() -> None:
    found = two_way("accuracy", *(shares((RNG.random((1, 40)) < 0.6).astype(float)) for _ in range(2)))
    assert np.isfinite(found.of_examples)
    assert np.isnan([found.of_seeds, found.of_both, found.p]).all()
    same = shares(np.ones((3, 10)))
    assert two_way("accuracy", same, same).p == 1.0


def study(rng: np.random.Generator, seeds: int, of_seeds: float, examples: int = 200) -> tuple[Floats, Floats]:
    """Two methods that are as good as each other: each has easy examples of its own, and seeds that are better."""
    hardness = rng.normal(0, 1.2, examples)
    sides = []
    for _ in range(2):
        own, seed = rng.normal(0, 0.5, examples), rng.normal(0, of_seeds, (seeds, 1))
        sides.append(shares((1 + hardness + own + seed + rng.normal(0, 0.4, (seeds, examples)) > 0).astype(float)))
    return sides[0], sides[1]


def alarms(p_value: Callable[[Floats, Floats], float], seeds: int, of_seeds: float, studies: int) -> float:
    """The share of studies without a difference in which one is found."""
    rng = np.random.default_rng(seeds)
    return float(np.mean([p_value(*study(rng, seeds, of_seeds)) <= 0.05 for _ in range(studies)]))


def both(ours: Floats, theirs: Floats) -> float:
    return two_way("accuracy", ours, theirs).p


def over_seeds(ours: Floats, theirs: Floats) -> float:
    return TESTS["permutation"].p_value((ours - theirs)[..., 0].mean(1))


def test_seeds_alone_find_what_is_not_there_and_both_do_not() -> None:
    assert alarms(over_seeds, 10, 0.05, 200) > 0.2
    assert alarms(both, 10, 0.05, 200) <= 0.08


@pytest.mark.soak("products")
@pytest.mark.parametrize("of_seeds", [0.0, 0.05, 0.15, 0.3])
@pytest.mark.parametrize("seeds", [3, 5, 10, 20])
def test_false_alarms_are_at_most_six_in_a_hundred(seeds: int, of_seeds: float) -> None:
    count = 4000
    # Two standard errors of a share of so many studies.
    assert alarms(both, seeds, of_seeds, count) <= 0.06 + 2 * np.sqrt(0.06 * 0.94 / count)
