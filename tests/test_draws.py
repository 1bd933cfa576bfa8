"""Few-shot draws, epoch orders and the carved validation share: what they depend on, how even they are."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fusionkit.draws import carve, epoch_order, uniform_draw
from fusionkit.errors import UsageError


@pytest.mark.parametrize(("examples", "shots", "classes"), [(100, 8, 4), (7, 7, 1), (5, 1, 1), (1000, 16, 6)])
def test_a_draw_is_shots_times_classes_distinct_examples_in_order(examples: int, shots: int, classes: int) -> None:
    for seed in range(20):
        drawn = uniform_draw(examples, shots, classes, seed)
        assert drawn.shape == (shots * classes,)
        assert (np.diff(drawn) > 0).all()
        assert drawn[0] >= 0
        assert drawn[-1] < examples


def test_every_example_is_drawn_as_often_as_any_other() -> None:
    """Not stratified, not by position: 2,000 draws of 8 of 40, each example in 400 ± 5 standard deviations."""
    counts = np.zeros(40)
    for seed in range(2000):
        counts[uniform_draw(40, 4, 2, seed)] += 1
    deviation = np.sqrt(2000 * 0.2 * 0.8)
    assert np.abs(counts - 400).max() < 5 * deviation
    assert counts.std() > deviation / 2  # random, not dealt round


def test_two_examples_meet_in_a_draw_as_often_as_chance_has_it() -> None:
    """2,000 draws of 10 of 40: a pair is together with probability 10·9 / (40·39)."""
    together = sum({3, 4} <= set(uniform_draw(40, 10, 1, seed).tolist()) for seed in range(2000))
    chance = 90 / 1560
    assert abs(together - 2000 * chance) < 5 * np.sqrt(2000 * chance * (1 - chance))


def test_a_draw_of_everything_is_everything() -> None:
    assert uniform_draw(6, 3, 2, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_one_example_too_many_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        uniform_draw(11, 3, 4, 0)
    assert caught.value.what == "the training split is smaller than the draw"
    assert caught.value.expected == "at most 11 examples"
    assert caught.value.received == "3 shots × 4 classes = 12"
    assert caught.value.remedy == "choose fewer --shots"


def everything(data_seed: int) -> list[list[int]]:
    stay, share = carve(50, 0.1)
    orders = [epoch_order(30, data_seed, epoch).tolist() for epoch in (1, 2, 3)]
    return [uniform_draw(50, 5, 2, data_seed).tolist(), *orders, stay.tolist(), share.tolist()]


def test_the_data_seed_alone_decides() -> None:
    found = []
    for state in range(3):
        np.random.seed(state)  # noqa: NPY002  the global state is what must not matter
        random.seed(state)
        torch.manual_seed(state)
        found.append(everything(data_seed=5))
    assert found[0] == found[1] == found[2]


def test_another_data_seed_gives_another_draw_and_other_orders_but_the_same_carving() -> None:
    one, other = everything(5), everything(6)
    assert [a != b for a, b in zip(one, other, strict=True)] == [True, True, True, True, False, False]


def test_an_order_is_a_permutation_of_its_own_in_each_epoch() -> None:
    orders = [epoch_order(20, 1, epoch).tolist() for epoch in range(1, 51)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 50


def test_every_example_comes_first_as_often_as_any_other() -> None:
    counts = np.bincount([epoch_order(10, seed, 1)[0] for seed in range(2000)], minlength=10)
    assert np.abs(counts - 200).max() < 5 * np.sqrt(2000 * 0.1 * 0.9)


def test_the_order_knows_nothing_of_the_draw() -> None:
    """First ten of an epoch and a draw of ten, both of 40: they share 10·10/40, over 1,000 seeds."""
    shared = [
        len(set(epoch_order(40, seed, 1)[:10].tolist()) & set(uniform_draw(40, 10, 1, seed).tolist()))
        for seed in range(1000)
    ]
    # The hypergeometric distribution's variance is 10 · ¼ · ¾ · 30/39.
    assert abs(np.mean(shared) - 2.5) < 5 * np.sqrt(10 * 0.25 * 0.75 * 30 / 39 / 1000)
    before = epoch_order(40, 3, 1).tolist()
    uniform_draw(40, 10, 1, 3)
    assert epoch_order(40, 3, 1).tolist() == before


@pytest.mark.parametrize(
    ("examples", "share", "size"), [(100, 0.1, 10), (14, 0.1, 1), (15, 0.1, 2), (2, 0.1, 1), (9, 0.5, 4)]
)
def test_carving_splits_without_loss_and_leaves_at_least_one(examples: int, share: float, size: int) -> None:
    stay, carved = carve(examples, share)
    assert len(carved) == size
    assert sorted([*stay.tolist(), *carved.tolist()]) == list(range(examples))
    assert (np.diff(stay) > 0).all()
    assert (np.diff(carved) > 0).all()


def test_carving_is_always_the_same_and_not_the_end_of_the_file() -> None:
    assert all(np.array_equal(carve(200, 0.1)[1], carve(200, 0.1)[1]) for _ in range(5))
    carved = carve(200, 0.1)[1]
    assert 60 < carved.mean() < 140
    assert carved.max() - carved.min() > 100
