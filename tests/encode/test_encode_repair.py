"""Damaged chunks encoded again, and stored states held against live ones."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch

from fusionkit.encode.repair import compare_sample, damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError, StoreError
from fusionkit.sources import Source
from fusionkit.store import layout, open_store, verify_store

CHUNKS = "states.zarr/{}/hidden_states/c/{}/0/0"


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """A copy of the finished store, to spoil."""
    return Path(shutil.copytree(whole, tmp_path / "s"))


@pytest.fixture
def shifted(encoder: Encoder) -> Encoder:
    """The encoder, by its identity, with another last layer: as another machine's rounding, only larger."""
    model = copy.deepcopy(encoder.model)
    with torch.inference_mode(False), torch.no_grad():
        model.encoder.layer[2].output.LayerNorm.bias += 0.5
    return dataclasses.replace(encoder, model=model)


def faults(store: Path) -> dict[str, str]:
    return {checked.path: checked.fault for checked in verify_store(store) if checked.fault is not None}


def test_damaged_chunks_are_made_again_with_the_same_bytes(
    store: Path, whole: Path, encoder: Encoder, assert_same: Callable[[Path, Path], None]
) -> None:
    untouched = (store / CHUNKS.format("train", 0)).stat().st_mtime_ns
    flipped = bytearray((store / CHUNKS.format("train", 4)).read_bytes())
    flipped[100] ^= 64
    (store / CHUNKS.format("train", 4)).write_bytes(flipped)
    (store / CHUNKS.format("train", 2)).write_bytes(b"cut")
    (store / CHUNKS.format("validation", 1)).unlink()
    parts = damaged_parts(store, faults(store))
    assert sorted((part.split, part.chunk) for part in parts) == [("train", 2), ("train", 4), ("validation", 1)]
    assert repair(store, parts, encoder) == []
    assert faults(store) == {}
    assert_same(store, whole)
    assert (store / CHUNKS.format("train", 0)).stat().st_mtime_ns == untouched


def test_a_chunk_that_comes_out_otherwise_is_told_and_recorded(store: Path, whole: Path, shifted: Encoder) -> None:
    (store / CHUNKS.format("train", 3)).unlink()
    parts = damaged_parts(store, faults(store))
    assert repair(store, parts, shifted) == parts
    assert faults(store) == {}
    manifests = [json.loads((s / "manifest.json").read_text()) for s in (whole, store)]
    before, after = (manifest["splits"]["train"]["chunks"]["hidden_states"] for manifest in manifests)
    assert [i for i in range(7) if before[i] != after[i]] == [3]


def test_what_a_mended_part_was_computed_with_is_recorded(store: Path, whole: Path, encoder: Encoder) -> None:
    (store / CHUNKS.format("train", 3)).unlink()
    elsewhere = {**encoder.computes_with, "threads": 99}
    with mock.patch.object(Encoder, "computes_with", elsewhere):
        assert repair(store, damaged_parts(store, faults(store)), encoder) == []
    (before, after) = (json.loads((s / "manifest.json").read_text())["provenance"] for s in (whole, store))
    assert after["computed_with"] == [*before["computed_with"], elsewhere]


def test_a_store_whose_records_name_no_plan_is_mended(
    store: Path, whole: Path, encoder: Encoder, assert_same: Callable[[Path, Path], None]
) -> None:
    """Earlier versions wrote no plan; what is written now has that of the store."""
    for path in (store / "parts").iterdir():
        record = json.loads(path.read_text())
        del record["plan"]
        path.write_text(json.dumps(record))
    (store / CHUNKS.format("train", 3)).unlink()
    assert repair(store, damaged_parts(store, faults(store)), encoder) == []
    assert_same(store, whole)
    assert len({json.loads((each / "parts" / "train-00003.json").read_text())["plan"] for each in (store, whole)}) == 1


def test_another_encoder_repairs_nothing(store: Path, encoder: Encoder) -> None:
    (store / CHUNKS.format("train", 3)).unlink()
    other = dataclasses.replace(encoder, identity={**encoder.identity, "weights": "0123"})
    with pytest.raises(EncoderError, match=r"is not the one that made .*: its weights differ") as caught:
        repair(store, damaged_parts(store, faults(store)), other)
    assert "--encoder" in str(caught.value.remedy)
    assert faults(store) == {CHUNKS.format("train", 3): "missing"}


def test_the_same_encoder_of_another_revision_repairs(store: Path, encoder: Encoder) -> None:
    """Of a hub id it is the commit, of a folder None."""
    (store / CHUNKS.format("train", 3)).unlink()
    elsewhere = dataclasses.replace(encoder, identity={**encoder.identity, "revision": "0123"})
    assert repair(store, damaged_parts(store, faults(store)), elsewhere) == []
    assert faults(store) == {}


def test_what_cannot_be_read_may_be_whole_and_is_not_replaced(store: Path) -> None:
    chunk = CHUNKS.format("train", 3)
    with pytest.raises(StoreError, match="it is not known whether it is damaged"):
        damaged_parts(store, {chunk: f"cannot be read: {os.strerror(errno.EACCES)}"})
    assert [part.chunk for part in damaged_parts(store, {chunk: f"cannot be read: {os.strerror(errno.EIO)}"})] == [3]


def test_what_came_from_the_source_cannot_be_repaired(store: Path) -> None:
    (store / "examples" / "train.parquet").unlink()
    with pytest.raises(StoreError, match="cannot be repaired from the store alone") as caught:
        damaged_parts(store, faults(store))
    assert "train.parquet" in caught.value.what


@pytest.mark.parametrize("examples", [1, 20, 60, 1000])
def test_a_sound_store_differs_from_live_states_by_rounding(store: Path, encoder: Encoder, examples: int) -> None:
    opened = open_store(store)
    largest = float(np.abs(opened["train"].hidden_states[:].astype(np.float32)).max())
    differences = compare_sample(opened, encoder, examples)
    assert [difference.layer for difference in differences] == [0, 1, 2, 3]
    for difference in differences:
        # Half a unit in the last place of float16, and batched sums.
        assert 0 < difference.largest <= largest * 2**-11 + 1e-5
        assert difference.cosine > 0.99999


def test_a_changed_layer_is_seen_in_that_layer(store: Path, shifted: Encoder) -> None:
    differences = compare_sample(open_store(store), shifted, 60)
    assert all(difference.largest < 0.005 for difference in differences[:3])
    assert differences[3].largest == pytest.approx(0.5, abs=0.005)
    assert differences[3].cosine < 0.99


def test_one_wrong_number_is_seen_if_its_example_is_looked_at(store: Path, encoder: Encoder) -> None:
    height = open_store(store).manifest["splits"]["train"]["rows_per_chunk"]
    chunk = np.memmap(store / CHUNKS.format("train", 6), np.float16, mode="r+", shape=(4, height, 16))
    chunk[2, 5, 7] += 4
    chunk.flush()
    differences = compare_sample(open_store(store), encoder, 60)
    assert [round(difference.largest, 1) for difference in differences] == [0.0, 0.0, 4.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_are_not_copied_from_a_chunk_that_is_itself_to_be_mended(
    encoded: Callable[..., object], encoder: Encoder, assert_same: Callable[[Path, Path], None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, dtype: str,
) -> None:  # fmt: skip
    """A sequence of every part is at home in the first, where another part's sound chunk lies."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 8 * layout.row_bytes(4, 16, dtype))
    letters = string.ascii_lowercase
    words = [row for k in range(12) for row in (["ab", "cd"], [letters[k], letters[k + 1], letters[2 * k]])]
    source = Source("again", {"train": pa.table({"tokens": words, "tags": [["O"] * len(row) for row in words]})})
    for name in ("whole", "s"):
        encoded(source, tmp_path / name, dtype=dtype)
    array = "scales" if dtype == "int8" else "hidden_states"
    first, second = (tmp_path / f"s/states.zarr/train/{array}/c/{k}/0{'' if dtype == 'int8' else '/0'}" for k in (0, 1))
    shutil.copy(second, first)
    (tmp_path / "s" / CHUNKS.format("train", 4)).unlink()
    parts = damaged_parts(tmp_path / "s", faults(tmp_path / "s"))
    assert sorted(part.chunk for part in parts) == [0, 4]
    for ordered in (parts, parts[::-1]):
        copied = Path(shutil.copytree(tmp_path / "s", tmp_path / str(len(list(tmp_path.iterdir())))))
        assert repair(copied, ordered, encoder) == []
        assert_same(copied, tmp_path / "whole")
