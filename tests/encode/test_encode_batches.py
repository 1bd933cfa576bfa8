"""Batches: which examples go together, and how they are padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusionkit.alignment import lay_rows
from fusionkit.encode.batches import PartInput, sorted_batches
from fusionkit.ragged import offsets_of


def test_batches_are_those_told_by_hand() -> None:
    """Longest first, equals in their order, empty ones left out; two of length 5 fill a budget of 12."""
    lengths = np.array([2, 5, 0, 3, 5, 2, 3, 1])
    assert [batch.tolist() for batch in sorted_batches(lengths, 12)] == [[1, 4], [3, 6, 0, 5], [7]]


@pytest.mark.parametrize("budget", [1, 7, 64, 1024])
def test_every_example_is_in_one_batch_within_the_budget(budget: int) -> None:
    lengths = np.random.default_rng(budget).integers(0, 30, 200)
    batches = list(sorted_batches(lengths, budget))
    seen = np.concatenate(batches)
    assert sorted(seen.tolist()) == np.flatnonzero(lengths).tolist()
    assert (np.diff(lengths[seen]) <= 0).all()
    for batch in batches:
        # An example longer than the budget goes alone.
        assert len(batch) * lengths[batch].max() <= budget or len(batch) == 1


def test_a_batch_is_its_examples_side_by_side() -> None:
    offsets = offsets_of(np.array([1, 3, 2]))
    given = PartInput(
        token_ids=torch.tensor([11, 21, 22, 23, 31, 32]),
        segments=torch.tensor([1, 0, 1, 1, 0, 1]),
        offsets=offsets,
        rows=lay_rows("tokens", offsets, np.zeros(6, dtype=np.int32), None),
        first_row=0,
        first_number=0,
        first_alike=np.full(3, -1),
    )
    (batch,) = given.batches(given.unique(), 100, pad_id=9)
    assert batch.examples.tolist() == [1, 2, 0]
    assert batch.token_ids.tolist() == [[21, 22, 23], [31, 32, 9], [11, 9, 9]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert batch.segments.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]
