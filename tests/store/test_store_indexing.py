"""``hidden_states`` of a store is indexed as the same array in memory is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusionkit.store import HiddenStates, open_store

MASK = np.arange(47) % 3 == 1
KEYS: list[Any] = [
    # integers
    0, 46, -1, -47, np.int64(10), np.uint8(9), np.array(12),
    # slices, within and across the chunks of ten rows, with steps, empty, beyond the end
    slice(None), slice(3, 8), slice(10, 20), slice(8, 33), slice(-5, None), slice(None, None, 7), slice(None, None, -1),
    slice(40, 5, -3), slice(20, 10), slice(30, 1000), slice(-1000, 2),
    # masks
    MASK, MASK.tolist(), np.zeros(47, dtype=bool), np.ones(47, dtype=bool),
    # index arrays: sorted, not, repeated, negative, across chunks and back, empty, of two dimensions
    [1, 2, 3], [9, 10], [46, 0, 23], [5, 5, 5], [-1, 0, -47], [0, 30, 1], [1, 0, 30, 2, 31], [],
    np.array([], dtype=np.int32), np.array([[3, 45], [10, 9]]), np.array([4, 3], dtype=np.uint16), range(0, 40, 9),
    np.random.default_rng(0).permutation(47),
    # tuples
    (), (4,), (4, 1), (4, 1, 2), (-1, -1, -1), (slice(3, 25), 2), (slice(None), slice(1, None)),
    (slice(5, 30, 4), 0, slice(None, 2)),
    (slice(3, 25), [2, 0]), (7, [2, 0]), (7, slice(None), [4, 0, 0]), ([3, 30], 1), ([3, 30], slice(None), 2),
    ([3, 30], [0, 2]),
    ([3, 30, 3], [0, 2, 1], [4, 4, 0]), (MASK, 1), (MASK, slice(None), 3), (MASK, slice(0, 2)), ([[3], [30]], [0, 2]),
    (slice(2, 4), np.array([True, False, True])), ([12], slice(None, None, -1)),
    # an ellipsis
    ..., (..., 2), (..., slice(1, 3)), (4, ...), (4, ..., 0), (slice(8, 12), ...), (..., 1, 2), (4, 1, 2, ...),
    (..., 4, 1, 2), ([11, 4], ..., 1),
]  # fmt: skip
REFUSED: list[Any] = [
    47, -48, [47], [0, -48], [0.5], [1.0], "0", ["0"], None, MASK[:-1], np.append(MASK, False), True,
    (0, 3), (0, 0, 5), (0, 0, 0, 0), (slice(None), -4), ([0, 1], [0, 1, 2]), ([0, 1, 2], [0, 1]), (..., 0, 0, 0, 0),
    (slice(None), [True, False]), np.ones((47, 3), dtype=float),
]  # fmt: skip


@pytest.fixture
def found(known: Any) -> HiddenStates:
    return open_store(known.path)["train"].hidden_states


def test_there_are_many_ways_to_index() -> None:
    assert (len(KEYS), len(REFUSED)) == (66, 21)


@pytest.mark.product
@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_an_index_gives_what_numpy_gives(known: Any, found: HiddenStates, key: Any) -> None:
    expected = known.states[key]
    assert found[key].dtype == expected.dtype
    assert found[key].shape == expected.shape
    np.testing.assert_array_equal(found[key], expected)


@pytest.mark.product
@pytest.mark.parametrize("key", REFUSED, ids=range(len(REFUSED)))
def test_an_index_that_is_none_of_the_arrays_is_refused(known: Any, found: HiddenStates, key: Any) -> None:
    with pytest.raises(IndexError):
        found[key]
    # A new axis, alone here, NumPy would give.
    if key is not None and key is not True:
        with pytest.raises(IndexError):
            known.states[key]


def test_it_is_an_array_to_numpy(known: Any, found: HiddenStates) -> None:
    assert (found.shape, found.ndim, len(found), found.dtype) == ((47, 3, 5), 3, 47, known.states.dtype)
    np.testing.assert_array_equal(np.asarray(found), known.states)
    assert np.asarray(found, dtype=np.float64).dtype == np.float64


def test_what_is_given_is_a_copy(known: Any, found: HiddenStates) -> None:
    for key in (slice(0, 3), [0, 1, 2], 0):
        found[key][...] = 1
    np.testing.assert_array_equal(found[:3], known.states[:3])
