"""Intervals, paired tests and corrections against formulas written out, SciPy's own and tables of others."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fusionkit.statistics import CORRECTIONS, TESTS, corrected
from fusionkit.statistics.intervals import bootstrap_interval
from fusionkit.statistics.paired import EXACT, RESAMPLES, student_tails

SCORES = np.array([0.61, 0.66, 0.58, 0.70, 0.64, 0.65, 0.59])
NUMBERS = st.lists(st.integers(-50, 50).map(lambda n: n / 16), min_size=1, max_size=9)


def flips(differences: list[float]) -> float:
    """The share of all sign patterns that are at least as far off, by counting them."""
    observed = abs(math.fsum(differences))
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    far = [abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in patterns]
    return sum(far) / len(patterns)


def test_the_bootstrap_interval_is_scipys_up_to_the_draw() -> None:
    scipys = stats.bootstrap(
        (SCORES,), np.mean, method="percentile", n_resamples=50_000, rng=np.random.default_rng(5)
    ).confidence_interval
    spread = SCORES.std() / math.sqrt(len(SCORES))
    assert bootstrap_interval(SCORES) == pytest.approx(tuple(scipys), abs=0.05 * spread)


def test_an_interval_of_equal_numbers_is_a_point_and_one_number_has_none() -> None:
    assert bootstrap_interval(np.array([0.5, 0.5, 0.5])) == (0.5, 0.5)
    assert all(map(math.isnan, bootstrap_interval(np.array([0.5]))))
    assert all(map(math.isnan, bootstrap_interval(np.array([]))))


@given(NUMBERS)
def test_the_permutation_test_counts_every_pattern(differences: list[float]) -> None:
    # Sixteenths add up without rounding, so the count is exact.
    assert TESTS["permutation"].p_value(np.array(differences)) == flips(differences)


def test_rounding_makes_no_sum_the_lesser() -> None:
    # 0.1 + 0.2 + 0.3 is not 0.3 + 0.2 + 0.1; both patterns without a flip and with all must count.
    for differences in itertools.permutations([0.1, 0.2, 0.3, 0.7, 0.4]):
        assert TESTS["permutation"].p_value(np.array(differences)) == 2 / 2**5


def test_the_permutation_test_is_scipys() -> None:
    differences = np.random.default_rng(3).normal(0.4, 1, 11)
    scipys = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", vectorized=True, n_resamples=2**12
    ).pvalue
    assert TESTS["permutation"].p_value(differences) == pytest.approx(scipys, rel=1e-12)


def test_beyond_what_can_be_counted_patterns_are_drawn() -> None:
    rng = np.random.default_rng(7)
    differences = np.round(rng.normal(0.3, 1, EXACT + 4), 1)
    # The exact share, by the distribution of the sum in tenths.
    counts = {0: 1}
    for tenth in (round(10 * value) for value in differences):
        step: dict[int, int] = {}
        for total, count in counts.items():
            for signed in (total + tenth, total - tenth):
                step[signed] = step.get(signed, 0) + count
        counts = step
    observed = abs(sum(round(10 * value) for value in differences))
    exact = sum(count for total, count in counts.items() if abs(total) >= observed) / 2 ** len(differences)
    assert TESTS["permutation"].p_value(differences) == pytest.approx(exact, abs=5 * math.sqrt(exact / RESAMPLES))
    assert 0.02 < exact < 0.9


def test_the_bootstrap_test_shifts_the_differences_to_no_mean() -> None:
    differences = np.array([0.3, -0.1, 0.25, 0.5])
    shifted = differences - differences.mean()
    means = [np.mean(sample) for sample in itertools.product(shifted, repeat=4)]
    exact = np.mean([abs(mean) >= differences.mean() - 1e-12 for mean in means])
    assert TESTS["bootstrap"].p_value(differences) == pytest.approx(float(exact), abs=0.003)
    assert 0 < exact < 0.2


@pytest.mark.parametrize("name", TESTS)
@settings(max_examples=settings().max_examples // 4)
@given(differences=NUMBERS, seed=st.integers(0, 99))
def test_a_p_value_knows_no_order_and_only_the_bootstraps_a_sign(
    name: str, differences: list[float], seed: int
) -> None:
    values = np.array(differences)
    p = TESTS[name].p_value(values)
    shuffled = np.random.default_rng(seed).permutation(values)
    assert TESTS[name].p_value(shuffled) == p
    if name != "bootstrap":  # its draws are not symmetric
        assert TESTS[name].p_value(-values) == p
    assert TESTS[name].smallest(len(values)) <= p <= 1


@pytest.mark.parametrize("name", TESTS)
def test_no_difference_at_all_has_p_one(name: str) -> None:
    assert TESTS[name].p_value(np.zeros(6)) == 1.0


@pytest.mark.parametrize("n", [1, 2, 3, 5, EXACT, EXACT + 1])
def test_the_smallest_p_is_reached_where_all_differences_have_one_sign(n: int) -> None:
    p = TESTS["permutation"].p_value(np.linspace(0.1, 0.2, n))
    wanted = 2 / 2**n if n <= EXACT else 1 / (1 + RESAMPLES)
    assert TESTS["permutation"].smallest(n) == wanted
    assert wanted <= p <= wanted * 5  # of patterns that are drawn the two extreme ones may come up


def test_under_no_difference_flips_raise_no_more_false_alarms_than_they_say() -> None:
    rng = np.random.default_rng(11)
    p = np.array([TESTS["permutation"].p_value(rng.standard_t(3, 8)) for _ in range(2000)])
    for level in (0.05, 0.1, 0.25):
        exact = math.floor(level * 2**7) / 2**7  # p-values are multiples of 2 / 2⁸
        assert np.mean(p <= level) == pytest.approx(exact, abs=4 * math.sqrt(exact / 2000))


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04, never falling.
    p = np.array([0.04, 0.01, 0.03, 0.02])
    assert corrected(p, "holm") == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert corrected(p, "bonferroni") == pytest.approx([0.16, 0.04, 0.12, 0.08])
    assert corrected(p, "none") == pytest.approx(p)


def test_fdr_by_hand() -> None:
    # 15 p-values of Benjamini and Hochberg (1995), table 1: four are rejected at 0.05, by Bonferroni three.
    p = np.array([0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
                  0.6528, 0.7590, 1.0])  # fmt: skip
    wanted = [min(15 * p[k] / (k + 1) for k in range(j, 15)) for j in range(15)]
    assert corrected(p, "fdr") == pytest.approx(wanted)
    counts = [int(np.sum(corrected(p, name) <= 0.05)) for name in ("fdr", "bonferroni", "holm", "none")]
    assert counts == [4, 3, 3, 9]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p: list[float]) -> None:
    order = sorted(range(len(p)), key=lambda place: p[place])
    for level in (0.01, 0.05, 0.3):
        rejected = set()
        for rank, place in enumerate(order):
            if (len(p) - rank) * p[place] > level:
                break
            rejected.add(place)
        assert {place for place, value in enumerate(corrected(np.array(p), "holm")) if value <= level} == rejected


@pytest.mark.parametrize("name", CORRECTIONS)
def test_what_is_no_comparison_is_not_counted(name: str) -> None:
    p = np.array([0.01, np.nan, 0.02])
    found = corrected(p, name)
    assert math.isnan(found[1])
    assert found[[0, 2]] == pytest.approx(corrected(p[[0, 2]], name))
    assert np.isnan(corrected(np.array([np.nan]), name)).all()


def test_equal_scores_added_in_another_order_differ_from_nothing() -> None:
    assert student_tails(float(np.mean([0.7] * 3) - 0.7), 0.0, 2.0) == student_tails(0.0, 0.0, math.nan) == 1.0
    assert student_tails(0.1, 0.0, 2.0) == 0.0
