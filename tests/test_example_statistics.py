"""Differences over test examples, and over seeds and examples, against counting, formulas and simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fusionkit.ragged import IntArray
from fusionkit.runs.comparison.errors_of_differences import p_over_examples
from fusionkit.statistics import TESTS
from fusionkit.statistics.examples import (
    SCORES,
    Answered,
    TwoWay,
    mcnemar_p,
    pseudo_values,
    randomisation_p,
    two_way,
)
from fusionkit.statistics.intervals import Floats
from fusionkit.statistics.seeds import seed_error


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def shares(right: Floats) -> Floats:
    """Counts of accuracy, ``[…, examples, 2]``, from right answers ``[…, examples]``."""
    return np.stack([right, np.ones_like(right)], -1)


def of_classes(gold: IntArray, found: IntArray, classes: int) -> Floats:
    """Counts of right, told and found of each class, ``[1, examples, 3 · classes]``."""
    told, said = np.eye(classes)[gold], np.eye(classes)[found]
    return np.concatenate([told * said, told, said], -1)[None]


def test_scores_of_sums_are_scikit_learns(rng: np.random.Generator) -> None:
    gold, found = rng.integers(3, size=50), rng.integers(3, size=50)
    counts = of_classes(gold, found, 4).sum(1)
    assert SCORES["macro_f1"](counts)[0] == pytest.approx(f1_score(gold, found, average="macro"))
    assert SCORES["matthews"](counts)[0] == pytest.approx(matthews_corrcoef(gold, found))
    right = shares((gold == found).astype(float)).sum(0)
    assert SCORES["accuracy"](right) == pytest.approx(accuracy_score(gold, found))
    x, y = rng.normal(size=(2, 30))
    sums = np.stack([np.ones(30), x, y, x * x, y * y, x * y], -1).sum(0)
    assert SCORES["pearson"](sums) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert SCORES["f1"](np.array([0.0, 0.0, 4.0])) == SCORES["f1"](np.zeros(3)) == 0.0


def test_swapping_sentences_is_what_counting_every_swap_gives(rng: np.random.Generator) -> None:
    seeds, sentences = 2, 8
    gold = rng.integers(1, 5, size=sentences)
    sides = []
    for skill in (0.9, 0.5):
        found = rng.integers(1, 6, size=(seeds, sentences))
        right = np.minimum((rng.random((seeds, sentences)) < skill) * found, gold)
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
    assert randomisation_p(SCORES["f1"], ours, theirs) == pytest.approx(float(wanted))


def test_many_examples_are_swapped_at_random_and_always_in_the_same_way(rng: np.random.Generator) -> None:
    right = (rng.random((2, 3, 200)) < np.array([0.8, 0.72])[:, None, None]).astype(float)
    found = [randomisation_p(SCORES["accuracy"], *map(shares, right)) for _ in range(2)]
    assert found[0] == found[1]
    # Each seed's examples together: the normal approximation of the swap test.
    differences = (right[0] - right[1]).mean(0)
    z = abs(differences.sum()) / np.sqrt((differences**2).sum())
    assert found[0] == pytest.approx(2 * stats.norm.sf(z), abs=0.02)


def test_blocks_of_swaps_are_smaller_where_there_are_many_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of macro F1 over 50 classes have 300 counts beside 13 examples."""
    monkeypatch.setattr("fusionkit.statistics.intervals.BLOCK", 3000)
    monkeypatch.setattr("fusionkit.statistics.examples.SWAPS", 100)
    held = list[int]()

    def score(sums: Floats) -> Floats:
        held.append(sums.size)
        found: Floats = sums.sum(-1)
        return found

    assert randomisation_p(score, np.ones((2, 13, 150)), np.zeros((2, 13, 150))) < 0.05
    assert max(held) == 3000


def test_mcnemar_counts_what_one_side_alone_got_right() -> None:
    ours, theirs = np.array([1, 1, 1, 1, 1, 0, 0, 1.0]), np.array([1, 0, 0, 0, 0, 0, 1, 1.0])
    assert mcnemar_p(ours, theirs) == pytest.approx(stats.binomtest(4, 5).pvalue)
    assert mcnemar_p(ours, ours) == 1.0


def test_mcnemar_is_not_asked_of_words() -> None:
    """Each sentence has ten words here, of which one side tags one more right: any word right is no answer."""
    counts = np.stack([np.stack([np.full(12, right), np.full(12, 10.0)], -1) for right in (8.0, 7.0)])
    answers: Any = SimpleNamespace(
        of=lambda run: [SimpleNamespace(examples="test")], counts=lambda runs: (SCORES["accuracy"], counts)
    )
    trial = SimpleNamespace(digest="a", evaluated="store", metric="accuracy", counts=None, stores=("s",))
    pairs: Any = SimpleNamespace(trials=[([trial], [trial])], differences=np.array([0.1]), weights=np.ones(1))
    errors: Any = None
    assert p_over_examples(pairs, errors, answers) < 0.01
    counts[..., 1] = 1.0
    assert p_over_examples(pairs, errors, answers) == 1.0


def errors_of(ours: Floats, theirs: Floats) -> tuple[float, TwoWay]:
    """The mean difference of accuracies, and its errors, from counts ``[seeds, examples, 2]``."""
    sides = [np.stack([pseudo_values(SCORES["accuracy"], run) for run in side]) for side in (ours, theirs)]
    table = sides[0] - sides[1]
    return float(table.mean()), two_way(
        [Answered(table)], seed_error(table.mean(1), range(len(table)), [0] * len(table))
    )


def test_the_two_way_error_is_that_of_the_table_of_differences(rng: np.random.Generator) -> None:
    ours, theirs = (rng.random((2, 4, 25)) < 0.6).astype(float)
    mean, found = errors_of(shares(ours), shares(theirs))
    table = ours - theirs  # accuracy is a mean: what the jackknife gives is the table itself
    rows, columns = table.mean(1), table.mean(0)
    rest = ((table - rows[:, None] - columns + table.mean()) ** 2).sum() / (3 * 24)
    whole = max(25 * rows.var(ddof=1) + 4 * columns.var(ddof=1) - rest, 25 * rows.var(ddof=1), 4 * columns.var(ddof=1))
    assert mean == pytest.approx(table.mean())
    assert found.of_both == pytest.approx(np.sqrt(whole / 100))
    assert found.of_seeds == pytest.approx(stats.sem(rows))
    assert found.of_examples == pytest.approx(stats.sem(columns))
    p, half = found.p_value(mean, "both"), found.half("both")
    assert (p <= 0.05) == (abs(mean) > half)
    assert found.half("seeds") == pytest.approx(stats.sem(rows) * stats.t.ppf(0.975, 3))
    assert found.half("both") >= found.half("seeds")
    assert found.half("examples") == pytest.approx(stats.sem(columns) * stats.t.ppf(0.975, 24))


def test_a_single_seed_has_an_error_over_examples_alone(rng: np.random.Generator) -> None:
    mean, found = errors_of(*(shares((rng.random((1, 40)) < 0.6).astype(float)) for _ in range(2)))
    assert np.isfinite([found.of_examples, found.p_value(mean, "examples")]).all()
    assert np.isnan([found.of_seeds, found.of_both, found.p_value(mean, "both"), found.half("both")]).all()
    mean, found = errors_of(shares(np.ones((3, 10))), shares(np.ones((3, 10))))
    assert found.p_value(mean, "both") == 1.0


def test_several_test_sets_stay_as_they_are(rng: np.random.Generator) -> None:
    """Two sets of half the runs each: a quarter of each one's variance, and nothing of the difference between them."""
    tables = [rng.normal(0.1, 1, (3, 30)), rng.normal(0.5, 1, (3, 60))]
    values = np.concatenate([table.mean(1) for table in tables])
    seeds = seed_error(values, [0, 1, 2] * 2, [0, 1, 2] * 2, ["a"] * 3 + ["b"] * 3)
    assert seeds.variance == pytest.approx(sum(stats.sem(table.mean(1)) ** 2 for table in tables) / 4)
    found = two_way([Answered(table, 0.5) for table in tables], seeds)
    assert found.of_examples == pytest.approx(np.sqrt(sum(stats.sem(table.mean(0)) ** 2 for table in tables)) / 2)
    assert found.test_examples == 90


def test_tables_over_the_same_examples_are_averaged_example_by_example() -> None:
    """Halves of values whose variance is 1/3 over four examples; of two examples it is 1/2."""
    seeds, x = seed_error(np.ones(1), [0], [0]), np.array([[1.0, 1.0, 0.0, 0.0]])

    def found(other: Floats, *examples: str) -> tuple[Any, int]:
        errors = two_way([Answered(each, 0.5, of) for each, of in zip((x, other), examples, strict=True)], seeds)
        return errors.of_examples**2, errors.test_examples

    assert found(x, "a", "a") == (pytest.approx(1 / 12), 4)
    assert found(1 - x, "a", "a") == (0.0, 4)  # where one is right the other is wrong
    assert found(x, "a", "b") == (pytest.approx((1 / 12 + 1 / 12) / 4), 8)
    # Two of the four have no label: the errors may be as dependent as they can.
    wide = (math.sqrt(1 / 12) + math.sqrt(1 / 4)) / 2
    assert found(x[:, 1:3], "a", "a") == (pytest.approx(wide**2), 4)


def test_the_freedom_over_the_examples_of_two_test_sets_is_that_of_a_sum() -> None:
    """Satterthwaite's: a test set of two examples leaves little of it, however many the other has."""
    tables = [Answered(np.array([[1.0, 1.0, 0.0, 0.0]]), 0.5), Answered(np.array([[1.0, 0.0]]), 0.5)]
    errors = two_way(tables, seed_error(np.ones(1), [0], [0]))
    parts = (1 / 48, 3), (1 / 16, 1)  # variance of half a mean, freedom
    wanted = sum(v for v, _ in parts) ** 2 / sum(v**2 / freedom for v, freedom in parts)
    assert errors.examples_freedom == pytest.approx(wanted)
    assert errors.half("examples") == pytest.approx(stats.t.ppf(0.975, wanted) * math.sqrt(1 / 12))


def crossed(rng: np.random.Generator, draws: int, inits: int, spreads: tuple[float, float, float]) -> Floats:
    """Scores ``[draws · inits]`` around 0 of a grid of draws and init seeds."""
    parts = rng.normal(size=(draws, 1)), rng.normal(size=(1, inits)), rng.normal(size=(draws, inits))
    return sum(spread * part for spread, part in zip(spreads, parts, strict=True)).ravel()  # type: ignore[union-attr]


def coverage(draws: int, inits: int, spreads: tuple[float, float, float], studies: int) -> tuple[float, float]:
    """How often the interval of a mean holds the true one, and how often the interval of independent runs does."""
    rng, grid = np.random.default_rng(draws * inits), (np.repeat(range(draws), inits), np.tile(range(inits), draws))
    hits = np.zeros(2)
    for _ in range(studies):
        scores = crossed(rng, draws, inits, spreads)
        found = seed_error(scores, *(each.tolist() for each in grid))
        halves = [
            stats.t.ppf(0.975, found.freedom) * found.error,
            stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores),
        ]
        hits += [abs(scores.mean()) <= half for half in halves]
    return float(hits[0] / studies), float(hits[1] / studies)


# Standard deviations of draws, of init seeds and of the rest.
GRIDS = [(5, 5, (3.2, 0.5, 1.5)), (10, 2, (1.0, 0.5, 1.0)), (10, 3, (0.0, 0.3, 1.0)), (5, 5, (0.5, 3.2, 1.5))]


def test_crossed_runs_are_not_independent() -> None:
    ours, independent = coverage(5, 5, GRIDS[0][2], 300)
    assert ours >= 0.93
    assert independent < 0.75


@pytest.mark.soak("products")
@pytest.mark.parametrize(("draws", "inits", "spreads"), GRIDS)
def test_intervals_of_crossed_runs_hold_what_they_promise(
    draws: int, inits: int, spreads: tuple[float, float, float]
) -> None:
    assert coverage(draws, inits, spreads, 4000)[0] >= 0.93


def test_errors_of_a_grid_are_those_of_its_mean_squares(rng: np.random.Generator) -> None:
    table = rng.normal(size=(4, 3)) + np.array([[0.0], [1], [2], [5]])
    draws, inits = np.repeat(range(4), 3).tolist(), np.tile(range(3), 4).tolist()
    found = seed_error(table.ravel(), draws, inits)
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    squares = 3 * table.mean(1).var(ddof=1), 4 * table.mean(0).var(ddof=1), (rest**2).sum() / 6
    assert found.variance == pytest.approx(max(squares[0] + squares[1] - squares[2], *squares[:2]) / 12)
    assert found.of_draws == pytest.approx(np.sqrt((squares[0] - squares[2]) / 3))
    assert found.of_rest == pytest.approx(np.sqrt(squares[2]))
    # A run is missing: the larger of the errors by draw and by init seed. The draws have 2, 3, 3 and 3 of 11 runs.
    part = seed_error(table.ravel()[1:], draws[1:], inits[1:])
    means = [np.mean(table.ravel()[1:][np.array(draws[1:]) == draw]) for draw in range(4)]
    assert part.error == pytest.approx(np.std(means, ddof=1) * np.sqrt(31) / 11)
    assert np.isnan(part.of_draws)
    # Each draw with weights of its own, or one draw: as many trials as there are draws, or weights.
    assert seed_error(table[0], [0, 1, 2], [5, 6, 7]).error == pytest.approx(stats.sem(table[0]))
    assert seed_error(table[0], [0, 0, 0], [5, 6, 7]).error == pytest.approx(stats.sem(table[0]))
    assert np.isnan(seed_error(table[0, :1], [0], [0]).error)


def test_an_error_over_seeds_has_the_shares_that_draws_have_in_the_mean() -> None:
    """Draws of 0, 0.3 and 0.6, of which the first has four runs: 4/6, 1/6 and 1/6 of the mean, or a third each."""
    values, draws = np.array([0.0, 0.0, 0.0, 0.0, 0.3, 0.6]), [0, 0, 0, 0, 1, 2]
    over_runs = seed_error(values, draws, range(6))
    assert over_runs.error == pytest.approx(0.3 * math.sqrt(18) / 6)
    assert over_runs.freedom == 2
    over_draws = seed_error(values, draws, range(6), weights=np.array([0.25, 0.25, 0.25, 0.25, 1, 1]))
    assert over_draws.error == pytest.approx(0.3 / math.sqrt(3))


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
    mean, found = errors_of(ours, theirs)
    return found.p_value(mean, "both")


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


def test_where_nothing_varies_the_interval_has_no_width() -> None:
    same = two_way([Answered(np.ones((3, 40)), 1.0)], seed_error(np.ones(3), [0, 1, 2], [0, 1, 2]))
    assert [same.half(over) for over in ("seeds", "examples", "both")] == [0.0, 0.0, 0.0]
    alone = two_way([Answered(np.ones((1, 40)), 1.0)], seed_error(np.ones(1), [0], [0]))
    assert np.isnan([alone.half("seeds"), alone.half("both")]).all()
