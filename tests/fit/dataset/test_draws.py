"""Few-shot draws, epoch orders, the carved validation share and its watched part: what they depend on."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from fusionkit.dataset.draws import (
    WINDOW_CHUNKS,
    carve,
    epoch_order,
    nested_draw,
    stratified_draw,
    uniform_draw,
    watched_draw,
    window_order,
)
from fusionkit.errors import UsageError
from fusionkit.ragged import IntArray


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


def test_a_nested_draw_of_one_example_too_many_is_refused() -> None:
    with pytest.raises(UsageError, match="the training split is smaller than the draw"):
        nested_draw(11, 3, 4, 0)


def test_a_nested_draw_is_the_beginning_of_one_permutation() -> None:
    for seed in range(10):
        order = np.random.default_rng([seed, 8]).permutation(60).tolist()
        for shots in (1, 2, 7, 15):
            assert nested_draw(60, shots, 4, seed).tolist() == sorted(order[: shots * 4])


def test_a_nested_draw_lies_in_every_larger_one() -> None:
    for seed in range(5):
        draws = [set(nested_draw(60, shots, 3, seed).tolist()) for shots in range(1, 21)]
        assert [len(draw) for draw in draws] == [3 * shots for shots in range(1, 21)]
        pairs = [(small, large) for k, small in enumerate(draws) for large in draws[k + 1 :]]
        assert len(pairs) == 190
        assert all(small < large for small, large in pairs)


def test_every_example_is_in_a_nested_draw_as_often_as_any_other() -> None:
    counts = np.zeros(40)
    for seed in range(2000):
        counts[nested_draw(40, 4, 2, seed)] += 1
    assert np.abs(counts - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


def holders(**classes: list[int]) -> dict[str, IntArray]:
    return {name: np.array(found, dtype=np.int64) for name, found in classes.items()}


def test_a_stratified_draw_takes_so_many_of_each_class() -> None:
    labels = np.random.default_rng(0).choice(3, 90, p=[0.7, 0.2, 0.1])
    classes = holders(**{str(k): np.flatnonzero(labels == k).tolist() for k in range(3)})
    for seed in range(20):
        for shots in (1, 3, 5):
            drawn = stratified_draw(classes, 90, shots, seed)
            assert np.bincount(labels[drawn], minlength=3).tolist() == [shots] * 3
            assert (np.diff(drawn) > 0).all()


def test_an_example_of_several_classes_counts_for_each_of_them() -> None:
    """Written out: down the permutation, of each class the first N that hold it, whatever the others took."""
    rng = np.random.default_rng(1)
    held = [set(np.flatnonzero(rng.random(4) < 0.3).tolist()) for _ in range(80)]
    classes = holders(**{str(k): [i for i, found in enumerate(held) if k in found] for k in range(4)})
    for seed in range(20):
        for shots in (1, 4, 9):
            taken: set[int] = set()
            seen = [0] * 4
            for example in np.random.default_rng([seed, 8]).permutation(80).tolist():
                short = [k for k in held[example] if seen[k] < shots]
                taken |= {example} if short else set()
                for k in held[example]:
                    seen[k] += 1
            assert stratified_draw(classes, 80, shots, seed).tolist() == sorted(taken)
            assert shots <= len(taken) < 4 * shots or shots == 1
            assert all(sum(k in held[i] for i in taken) >= shots for k in range(4))


def test_a_stratified_draw_lies_in_every_larger_one_and_knows_no_order_of_classes() -> None:
    classes = holders(a=list(range(30)), b=list(range(20, 60)), c=[5, 25, 45, 59, 11, 13])
    draws = [set(stratified_draw(classes, 60, shots, 3).tolist()) for shots in range(1, 7)]
    assert all(small <= large for k, small in enumerate(draws) for large in draws[k + 1 :])
    assert len({frozenset(draw) for draw in draws}) == 6
    backwards = dict(reversed(classes.items()))
    assert stratified_draw(backwards, 60, 4, 3).tolist() == stratified_draw(classes, 60, 4, 3).tolist()


def test_every_example_of_a_class_is_drawn_as_often_as_any_other_of_it() -> None:
    classes = holders(many=list(range(30)), few=list(range(30, 40)))
    counts = np.zeros(40)
    for seed in range(2000):
        counts[stratified_draw(classes, 40, 5, seed)] += 1
    assert np.abs(counts[:30] - 2000 / 6).max() < 5 * np.sqrt(2000 * 5 / 36)
    assert np.abs(counts[30:] - 1000).max() < 5 * np.sqrt(2000 / 4)


def test_a_class_with_too_few_examples_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        stratified_draw(holders(many=[0, 1, 2, 3], few=[4, 5], one=[6]), 7, 3, 0)
    assert caught.value.what == "a stratified draw takes more training examples than 2 of 3 classes have"
    assert caught.value.expected == "at least 3 examples of each class"
    assert caught.value.received == "'one' 1, 'few' 2"


def test_what_is_watched_is_uniform_fixed_and_nested() -> None:
    assert watched_draw(50, 10).tolist() == sorted(np.random.default_rng([0, 9]).permutation(50)[:10].tolist())
    sizes = [set(watched_draw(50, count).tolist()) for count in range(1, 51)]
    assert [len(each) for each in sizes] == list(range(1, 51))
    assert all(small < large for small, large in itertools.pairwise(sizes))
    assert sizes[9] != set(carve(50, 0.2)[1].tolist())  # a stream of its own


def everything(data_seed: int) -> list[list[int]]:
    stay, share = carve(50, 0.1)
    orders = [epoch_order(30, data_seed, epoch).tolist() for epoch in (1, 2, 3)]
    drawn = [draw(50, 5, 2, data_seed).tolist() for draw in (uniform_draw, nested_draw)]
    halves = {"a": np.arange(25, dtype=np.int64), "b": np.arange(25, 50, dtype=np.int64)}
    drawn.append(stratified_draw(halves, 50, 5, data_seed).tolist())
    return [*drawn, *orders, stay.tolist(), share.tolist(), watched_draw(50, 10).tolist()]


def test_the_data_seed_alone_decides() -> None:
    found = []
    for state in range(3):
        np.random.seed(state)  # noqa: NPY002  the global state is what must not matter
        random.seed(state)
        torch.manual_seed(state)
        found.append(everything(data_seed=5))
    assert found[0] == found[1] == found[2]


def test_another_data_seed_gives_other_draws_and_orders_but_judges_on_the_same_examples() -> None:
    one, other = everything(5), everything(6)
    assert [a != b for a, b in zip(one, other, strict=True)] == [True] * 6 + [False] * 3


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


CHUNKS = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 4, 5, 5, 6, 7, 7, 7, 8, 9, 9, 9])  # no example begins in chunk 2


def test_windows_hold_every_example_once_and_a_few_whole_chunks_each() -> None:
    for epoch in range(30):
        windows = window_order(CHUNKS, 5, epoch)
        assert sorted(np.concatenate(windows).tolist()) == list(range(len(CHUNKS)))
        of_each = [set(CHUNKS[window].tolist()) for window in windows]
        assert [len(chunks) for chunks in of_each] == [WINDOW_CHUNKS, WINDOW_CHUNKS, 1]
        assert sum(map(len, of_each)) == len(set().union(*of_each)) == 9


def test_windows_depend_on_the_seed_the_epoch_and_the_chunks_alone() -> None:
    def order(chunks: IntArray, seed: int, epoch: int) -> list[int]:
        return list(np.concatenate(window_order(chunks, seed, epoch)))

    first = order(CHUNKS, 3, 2)
    assert order(CHUNKS.copy(), 3, 2) == first
    others = [order(CHUNKS, 4, 2), order(CHUNKS, 3, 1), order(CHUNKS // 2, 3, 2), list(epoch_order(len(CHUNKS), 3, 2))]
    assert first not in others


def test_chunks_come_in_any_order_and_so_do_the_examples_of_a_window() -> None:
    """2,000 epochs: each of nine chunks is in the last window, of one, as often as any other; neighbours part."""
    last, behind = np.zeros(10), 0
    for epoch in range(2000):
        windows = window_order(CHUNKS, 0, epoch)
        last[CHUNKS[windows[-1][0]]] += 1
        order = np.concatenate(windows).tolist()
        behind += order.index(5) > order.index(6)  # of one chunk
    assert last[2] == 0
    assert np.abs(last[last > 0] - 2000 / 9).max() < 5 * np.sqrt(2000 / 9 * 8 / 9)
    assert abs(behind - 1000) < 5 * np.sqrt(500)


def test_no_examples_are_no_windows() -> None:
    assert window_order(np.zeros(0, dtype=np.int64), 0, 1) == []
