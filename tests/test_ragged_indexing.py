"""Ragged examples indexed as NumPy and scikit-learn index a column, against a list of the examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.ragged import Ragged, chosen_examples, offsets_of

LENGTHS = [2, 0, 3, 1, 4]
KEYS: list[Any] = [
    slice(None), slice(1, 4), slice(None, None, -1), slice(4, 1), [0, 3], [4, 4, 0], [-1, 1], [],
    np.array([2, 0]), np.array([], dtype=np.int64), np.array([True, False, True, False, True]), [False] * 5,
]  # fmt: skip


@pytest.fixture
def ragged() -> Ragged:
    """Five examples; one row of the third has no state."""
    states = torch.arange(10 * 2 * 3, dtype=torch.float16).reshape(10, 2, 3)
    mask = np.ones(10, dtype=bool)
    mask[3] = False
    return Ragged(states, offsets_of(np.array(LENGTHS)), mask)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("with_ellipsis", [False, True])
def test_chosen_examples_are_those_of_a_list(ragged: Ragged, key: Any, with_ellipsis: bool) -> None:
    numbers = np.arange(5)[np.array(key, dtype=np.int64) if isinstance(key, list) and not key else key].tolist()
    found = ragged[(key, ...)] if with_ellipsis else ragged[key]
    assert isinstance(found, Ragged)
    assert (len(found), found.shape) == (len(numbers), (len(numbers),))
    assert np.diff(found.row_offsets).tolist() == [LENGTHS[number] for number in numbers]
    assert found.hidden_states.dtype == torch.float16
    assert found.row_offsets.dtype == np.int64
    starts = [sum(LENGTHS[:number]) for number in range(5)]
    rows = [starts[number] + row for number in numbers for row in range(LENGTHS[number])]
    assert found.hidden_states[:, 0, 0].tolist() == [6 * row for row in rows]
    assert found.row_mask.tolist() == [row != 3 for row in rows]


@pytest.mark.parametrize("key", [0, 2, -1, np.int64(4)])
def test_one_example_is_its_states(ragged: Ragged, key: Any) -> None:
    number = int(key) % 5
    start = sum(LENGTHS[:number])
    same: list[Any] = [key, (key,), (key, ...), (..., key)]
    for found in (ragged[each] for each in same):
        assert torch.equal(found, ragged.hidden_states[start : start + LENGTHS[number]])


@pytest.mark.parametrize("key", [..., (...,), ()])
def test_an_ellipsis_is_all_examples(ragged: Ragged, key: Any) -> None:
    assert len(ragged[key]) == 5


@pytest.mark.parametrize("key", [5, -6, [0, 5], [0.5], "a", [True], (0, 1), (..., ...)])
def test_an_example_that_is_not_there_is_refused(ragged: Ragged, key: Any) -> None:
    with pytest.raises(IndexError):
        ragged[key]


def test_one_of_very_many_examples_is_found_without_a_list_of_all() -> None:
    assert chosen_examples(-1, 10**15) == 10**15 - 1
    assert chosen_examples(slice(5, 11, 3), 10**15).tolist() == [5, 8]


def test_a_loop_ends_at_the_last_example(ragged: Ragged) -> None:
    assert [len(example) for example in ragged] == LENGTHS  # type: ignore[attr-defined]
