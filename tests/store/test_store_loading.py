"""Rows read into memory are the rows that are gathered from the store, and each is read once."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.errors import StoreError
from fusionkit.store import HiddenStates, open_store
from fusionkit.store.chunk_access import MappedChunks
from fusionkit.store.chunks import write_chunk
from fusionkit.store.in_memory import GAP_BYTES
from fusionkit.store.layout import StatesLayout, chunk_path

CHOICES = [np.arange(47), np.arange(8, 23), np.array([0, 9, 10, 11, 30, 46]), np.array([29]), np.zeros(0, np.int64)]


@pytest.mark.product(2)
@pytest.mark.parametrize("layers", [[0, 1, 2], [2], [2, 0]])
@pytest.mark.parametrize("rows", CHOICES, ids=len)
def test_loaded_rows_are_the_gathered_ones(known: Any, rows: Any, layers: list[int]) -> None:
    states = open_store(known.path)["train"].hidden_states
    room = states.load(np.arange(5, 40), [0, 1])  # memory of another size, with other numbers in it
    for loaded in (states.load(rows, layers), states.load(rows, layers, room)):
        asked = np.random.default_rng(0).permutation(np.repeat(rows, 2))
        assert torch.equal(loaded.gather(asked, layers), states.gather(asked, layers))
        assert torch.equal(loaded.gather(rows), states.gather(rows, layers))
        assert torch.equal(loaded.gather(asked, layers[:1]), states.gather(asked, layers[:1]))


@pytest.mark.parametrize("row", [7, 23, 9])
def test_rows_that_were_not_loaded_are_not_gathered(known: Any, row: int) -> None:
    loaded = open_store(known.path)["train"].hidden_states.load(np.array([8, 10, 11, 22]), [0])
    with pytest.raises(IndexError, match="not read"):
        loaded.gather(np.array([10, row]))


def test_layers_that_were_not_loaded_are_not_gathered(known: Any) -> None:
    loaded = open_store(known.path)["train"].hidden_states.load(np.array([8, 10]), [0, 2])
    with pytest.raises(ValueError, match=r"^1 is not in list$|not in tuple|layers"):
        loaded.gather(np.array([10]), [1])


@pytest.mark.parametrize("spoil", ["missing", "cut"])
def test_a_damaged_chunk_is_one_error_when_it_is_loaded(fresh: Any, spoil: str) -> None:
    path = Path(str(chunk_path(fresh.path, "train", 2)))
    raw = path.read_bytes()
    path.unlink()
    if spoil == "cut":
        path.write_bytes(raw[:-1])
    states = open_store(fresh.path)["train"].hidden_states
    assert len(states.load(np.arange(20), [0]).rows) == 20
    with pytest.raises(StoreError, match=spoil if spoil == "missing" else "damaged"):
        states.load(np.arange(20, 22), [0])


def test_rows_far_apart_are_read_by_themselves_and_near_ones_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of chunks of 60 rows of 8 KiB: gaps of up to eight rows are read along."""
    layout = StatesLayout(120, 2, 2048, 60, "float32")
    block = np.random.default_rng(1).normal(size=(2, 120, 2048)).astype(np.float32)
    for chunk, (start, stop) in enumerate(pairwise((0, 60, 120))):
        write_chunk(chunk_path(tmp_path, "train", chunk), block[:, start:stop], layout.arrays[0])
    states = HiddenStates(MappedChunks(tmp_path, "train", layout), layout)
    assert layout.arrays[0].row_bytes * 8 == GAP_BYTES
    read: Counter[int] = Counter()
    real = os.preadv

    def counted(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        done = real(file, [buffers[0][: 5 << 12]], offset, flags)  # and never more than 20 KiB at once
        read[offset - offset % layout.arrays[0].row_bytes] += 1
        return done

    monkeypatch.setattr(os, "preadv", counted)
    rows = np.array([3, 12, 22, 58, 59, 60])
    loaded = states.load(rows, [1])
    assert torch.equal(loaded.gather(rows), torch.from_numpy(block[1:, rows]).transpose(0, 1))
    begun = {(at // layout.arrays[0].row_bytes) - 60 for at in read}  # rows of layer 1 at which a read began
    assert {3, 22, 58, 0} <= begun
    assert not begun & set(range(13, 22))
    assert not begun & set(range(23, 58))
