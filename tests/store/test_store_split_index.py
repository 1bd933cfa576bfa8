"""A store's split indexed by examples: what ``take`` gives."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.ragged import Ragged
from fusionkit.store import open_store

KEYS: list[Any] = [slice(2, 5), slice(None, None, 3), [7, 0, 7], np.arange(10) % 2 == 0, []]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_chosen_examples_come_as_ragged_ones(known: Any, key: Any) -> None:
    split = open_store(known.path)["train"]
    assert split.shape == (len(split),) == (10,)
    wanted = split.take([] if isinstance(key, list) and not key else np.arange(10)[key])
    for found in (split[key], split[(key, ...)]):
        assert isinstance(found, Ragged)
        assert torch.equal(found.hidden_states, wanted.hidden_states)
        assert found.row_offsets.tolist() == wanted.row_offsets.tolist()
        assert found.row_mask.tolist() == wanted.row_mask.tolist()


def test_one_example_is_its_states_and_one_that_is_not_there_is_refused(known: Any) -> None:
    split = open_store(known.path)["train"]
    for number in (0, 7, -1):
        assert torch.equal(split[number], split.take([number]).hidden_states)
    for absent in (10, -11, [3, 10]):
        with pytest.raises(IndexError):
            split[absent]


def test_another_process_gets_the_places_of_chunks_not_their_bytes(known: Any) -> None:
    split = open_store(known.path)["train"]
    before = len(pickle.dumps(split))
    everything = split[:]
    sent = pickle.dumps(split)
    assert len(sent) < before + split.row_offsets.nbytes + split.row_mask.nbytes + 2000
    assert torch.equal(pickle.loads(sent)[:].hidden_states, everything.hidden_states)
