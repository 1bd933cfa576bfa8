"""Batches of sequences: every sequence once, within the budget, and cut as cheaply as can be."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionkit.encode.batching import LEAST_TOKENS, OVERHEAD, TOKENS, Batching
from fusionkit.ragged import IntArray

LENGTHS = st.lists(st.integers(0, 12), max_size=14)


def cost_of(lengths: IntArray, batching: Batching) -> int:
    return sum(batching.overhead + int(lengths[at].max()) * len(at) for at in batching.cut(lengths))


@given(LENGTHS, st.integers(1, 40), st.sampled_from([0, 3, 20]))
def test_every_sequence_is_in_one_batch_longest_first(lengths: list[int], tokens: int, overhead: int) -> None:
    some = np.array(lengths, dtype=np.int64)
    batches = list(Batching(tokens, overhead).cut(some))
    together = np.concatenate([np.zeros(0, dtype=np.int64), *batches])
    assert sorted(together) == np.flatnonzero(some).tolist()
    assert (np.diff(some[together]) <= 0).all()
    assert all(len(at) == 1 or int(some[at].max()) * len(at) <= tokens for at in batches)


@given(LENGTHS, st.integers(1, 40), st.integers(0, 30))
def test_no_other_cut_is_cheaper(lengths: list[int], tokens: int, overhead: int) -> None:
    """All cuts of the sorted sequences are tried."""
    descending = sorted(filter(None, lengths), reverse=True)

    @cache
    def cheapest(start: int) -> int:
        if start == len(descending):
            return 0
        most = max(1, tokens // descending[start])
        stops = range(start + 1, min(start + most, len(descending)) + 1)
        return min(overhead + descending[start] * (stop - start) + cheapest(stop) for stop in stops)

    assert cost_of(np.array(lengths, dtype=np.int64), Batching(tokens, overhead)) == cheapest(0)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 11, 16, 31, 32, 33, 512])
def test_a_batch_is_never_small(length: int) -> None:
    assert LEAST_TOKENS <= Batching(1024).fewest(length) * length < LEAST_TOKENS + length


def test_a_plan_keeps_its_batches() -> None:
    assert Batching.of({"batch_tokens": 10, "batch_overhead": 7}) == Batching(10, 7)


@pytest.mark.parametrize("hidden", [128, 384, 768, 1024])
def test_a_gpus_launches_weigh_less_the_wider_the_encoder_and_a_cpus_calls_do_not(hidden: int) -> None:
    assert Batching.on("cuda", hidden) == Batching(TOKENS["cuda"], round(OVERHEAD["cuda"] * 384**2 / hidden**2))
    assert Batching.on("cpu", hidden) == Batching(TOKENS["cpu"], OVERHEAD["cpu"])
