"""Chosen rows and chosen examples, in any order, across chunks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from fusionkit.errors import StoreError, UsageError
from fusionkit.store import Split, chunk_access, open_store

EXAMPLES: list[list[int]] = [
    [0], [2], [7], [1], [], list(range(10)), list(range(9, -1, -1)), [4, 4, 2, 4], [-1, -10, 7], [6, 1, 9],
    [7, 0, 5, 2],
]  # fmt: skip


@pytest.fixture
def split(known: Any) -> Split:
    return open_store(known.path)["train"]


def as_torch(known: Any, states: Any) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(states))
    return tensor.view(torch.bfloat16) if known.states.dtype == np.uint16 else tensor


def pieces(known: Any, examples: list[int]) -> list[Any]:
    """The rows' numbers of each example, by counting."""
    starts = [sum(known.lengths[:i]) for i in range(len(known.lengths))]
    return [np.arange(starts[i], starts[i] + known.lengths[i]) for i in examples]


@pytest.mark.product(2)
@pytest.mark.parametrize("layers", [None, [0], [2, 0], [1, 1], [-1]])
@pytest.mark.parametrize("seed", range(5))
def test_gathered_rows_are_the_arrays_rows(known: Any, split: Split, layers: list[int] | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = [rng.integers(0, 47, 30), rng.permutation(47), np.arange(47), rng.integers(10, 20, 5), np.zeros(0, int)]
    chosen = choices[seed]
    expected = known.states[chosen][:, slice(None) if layers is None else layers]
    found = split.hidden_states.gather(chosen, layers)
    assert found.shape == expected.shape
    assert torch.equal(found, as_torch(known, expected))


@pytest.mark.parametrize("rows", [[47], [-1], [0, 100]])
def test_rows_that_are_not_there_are_not_gathered(split: Split, rows: list[int]) -> None:
    with pytest.raises(IndexError):
        split.hidden_states.gather(np.array(rows))


def test_layers_that_are_not_there_are_not_gathered(split: Split) -> None:
    with pytest.raises(IndexError):
        split.hidden_states.gather(np.array([0, 1]), [3])


@pytest.mark.product(2)
@pytest.mark.parametrize("examples", EXAMPLES, ids=str)
@pytest.mark.parametrize("layers", [None, [2]])
def test_taken_examples_come_in_the_order_asked(
    known: Any, split: Split, examples: list[int], layers: list[int] | None
) -> None:
    batch = split.take(examples, layers)
    expected = pieces(known, examples)
    rows = np.concatenate([np.zeros(0, int), *expected])
    assert len(batch) == len(examples)
    assert batch.row_offsets.tolist() == [sum(map(len, expected[:i])) for i in range(len(examples) + 1)]
    assert batch.row_mask.tolist() == known.mask[rows].tolist()
    assert torch.equal(
        batch.hidden_states, as_torch(known, known.states[rows][:, slice(None) if layers is None else layers])
    )
    for i, piece in enumerate(expected):
        assert torch.equal(batch[i], batch.hidden_states[sum(map(len, expected[:i])) :][: len(piece)])


def test_examples_can_be_taken_by_a_mask(known: Any, split: Split) -> None:
    labels = split.examples["label"]
    batch = split.take(labels % 4 == 0)
    assert torch.equal(batch.hidden_states, split.take([0, 4, 8]).hidden_states)
    assert len(batch) == 3


@pytest.mark.parametrize("examples", [[10], [-11], [0.5], [True, False], ["0"]])
def test_examples_that_are_not_there_are_a_usage_error(split: Split, examples: list[Any]) -> None:
    with pytest.raises(UsageError, match="no such example in train") as caught:
        split.take(examples)
    assert caught.value.expected == "0 … 9"


def test_a_process_maps_only_some_chunks_at_once(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses more than 65,530 maps."""
    monkeypatch.setattr(chunk_access, "MOST_MAPPED", 2)
    states = open_store(fresh.path)["train"].hidden_states
    for _ in range(2):
        np.testing.assert_array_equal(states[:], fresh.states)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(fresh.path) in line]
    assert 1 <= len(mapped) <= 2


def test_a_missing_chunk_is_one_error_when_it_is_read(fresh: Any) -> None:
    (fresh.path / "states.zarr" / "train" / "hidden_states" / "c" / "2" / "0" / "0").unlink()
    split = open_store(fresh.path)["train"]
    np.testing.assert_array_equal(split.hidden_states[:20], fresh.states[:20])
    with pytest.raises(StoreError, match="is missing") as caught:
        split.hidden_states[19:21]
    assert "fusionkit verify" in str(caught.value.remedy)


def test_a_cut_chunk_is_one_error_when_it_is_read(fresh: Any) -> None:
    chunk = fresh.path / "states.zarr" / "train" / "hidden_states" / "c" / "2" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(fresh.path)["train"].take([4])
    assert (caught.value.expected, caught.value.received) == ("304 bytes", "303 bytes")


@pytest.mark.parametrize("file", ["zarr.json", "c/0"])
@pytest.mark.parametrize("spoil", ["cut", "flipped", "deleted"])
def test_damaged_offsets_are_one_error_when_they_are_read(fresh: Any, file: str, spoil: str) -> None:
    path = fresh.path / "states.zarr" / "train" / "row_offsets" / file
    raw = path.read_bytes()
    path.write_bytes({"cut": raw[:-9], "flipped": bytes([raw[0] ^ 1, *raw[1:]]), "deleted": b""}[spoil])
    if spoil == "deleted":
        path.unlink()
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(fresh.path)["train"].take([0])
    assert "fusionkit verify" in str(caught.value.remedy)


READS: dict[str, Callable[[Split], object]] = {
    "all": lambda split: split.examples,
    "one column": lambda split: split.columns(["label"]),
    "no column": lambda split: split.columns(["none"]),
    "their names": lambda split: split.column_names,
}


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("keep", [None, 0, 100])
def test_damaged_examples_are_one_error_when_they_are_read(fresh: Any, keep: int | None, what: str) -> None:
    path = fresh.path / "examples" / "train.parquet"
    raw = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(raw[:keep])
    with pytest.raises(StoreError, match=r"train\.parquet is damaged"):
        READS[what](open_store(fresh.path)["train"])


def test_only_the_columns_that_are_asked_for_are_read_and_each_once(
    known: Any, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_store(known.path)["train"].examples
    read = Mock(wraps=pd.read_parquet)
    monkeypatch.setattr(pd, "read_parquet", read)
    for asked, names in ((["label", "none"], ["label"]), (["text", "label"], ["text", "label"]), (["none"], [])):
        for _ in range(2):
            found = split.columns(asked)
            assert (list(found.columns), len(found)) == (names, 10)
            for name in names:
                pd.testing.assert_series_equal(found[name], whole[name])
    assert [call.kwargs["columns"] for call in read.call_args_list] == [["label"], ["text"]]
    assert split.column_names == ["text", "label"]


def test_columns_of_examples_that_are_in_memory_are_not_read_again(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = split.examples
    monkeypatch.setattr(pd, "read_parquet", Mock(side_effect=AssertionError))
    pd.testing.assert_frame_equal(split.columns(["label", "none"]), whole[["label"]])
    assert split.column_names == list(whole.columns)
    assert len(split.columns([])) == len(whole)


FILES: dict[str, Callable[[Split], object]] = {
    "states.zarr/train/hidden_states/c/2/0/0": lambda split: split.hidden_states[20:30],
    "states.zarr/train/row_offsets/c/0": lambda split: split.row_offsets,
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_not_called_damaged(fresh: Any, name: str) -> None:
    path = fresh.path / name
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(StoreError, match=r"^cannot read ") as caught:
        FILES[name](open_store(fresh.path)["train"])
    assert caught.value.received == os.strerror(errno.ELOOP)
    assert caught.value.remedy == "check the place and its permissions"
