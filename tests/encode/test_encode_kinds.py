"""States of int8 and stores of zstd, encoded: against NumPy on float32 states, and against the uncompressed store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import zarr
from numpy.typing import NDArray

from fusionkit.encode import EncodeReport
from fusionkit.encode.repair import compare_sample
from fusionkit.encoder import Encoder
from fusionkit.errors import EncoderError, IdentityError, StoppedError
from fusionkit.sources import Source
from fusionkit.specs import STATE_DTYPES
from fusionkit.store import layout, open_store, verify_store

Encoding = Callable[..., EncodeReport]
Same = Callable[[Path, Path], None]
# Words of one to four letters; some that have no sub-token, some behind the maximum length, examples without words.
BASE = [["ab", "\u200b", "c"], [], ["\u200b"], ["abcd", "ef", "ghij"], ["a", "b", "c", "d", "e"], ["abcd"] * 9]
WORDS = [*BASE, *BASE, *([letter, *row] for letter in "xyz" for row in BASE)]


@pytest.fixture
def masked_source() -> Source:
    def table(words: list[list[str]]) -> pa.Table:
        column = pa.array(words, pa.list_(pa.string()))
        return pa.table({"tokens": column, "tags": pa.array([["O"] * len(row) for row in words], column.type)})

    return Source("masked", {"train": table(WORDS), "test": table(WORDS[3:9])})


def with_zarr(store: Path, split: str, name: str) -> NDArray[Any]:
    return np.asarray(zarr.open_array(store / "states.zarr" / split / name, mode="r")[...])


@pytest.mark.parametrize("rows", ["tokens", "words", "words-mean", "cls", "mean"])
def test_int8_is_what_numpy_makes_of_the_float32_states(
    masked_source: Source, encoded: Encoding, tmp_path: Path, rows: str
) -> None:
    """Both stores are one part a split, so that both have the same batches."""
    encoded(masked_source, tmp_path / "float32", rows=rows, dtype="float32", max_length=12)
    encoded(masked_source, tmp_path / "int8", rows=rows, dtype="int8", max_length=12)
    seen_masked = 0
    for split in ("train", "test"):
        states = with_zarr(tmp_path / "float32", split, "hidden_states")  # [rows, layers, hidden]
        values, scales = (with_zarr(tmp_path / "int8", split, name) for name in ("hidden_states", "scales"))
        assert (str(values.dtype), str(scales.dtype)) == ("int8", "float32")
        largest = np.abs(states).max(axis=2)
        np.testing.assert_array_equal(scales, largest / np.float32(127))
        quotient = np.divide(states, scales[..., None], out=np.zeros_like(states), where=scales[..., None] > 0)
        np.testing.assert_array_equal(values, np.rint(quotient))
        # A step's half, and what float32 adds in two roundings of up to 127 steps.
        allowed = scales[..., None] * (0.5 + 127 * 2.0**-22)
        found = open_store(tmp_path / "int8")[split].hidden_states[:]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values * scales[..., None])
        assert (np.abs(states - found) <= allowed).all()
        mask = open_store(tmp_path / "int8")[split].row_mask
        assert ((scales == 0).all(axis=1) == ~mask).all()
        assert not values[~mask].any()
        assert (np.abs(values[mask]).max(axis=2) == 127).all()
        seen_masked += int((~mask).sum())
    assert (seen_masked > 0) == (rows in ("words", "words-mean"))


def test_int8_stands_beside_live_states(source: Source, encoded: Encoding, encoder: Encoder, tmp_path: Path) -> None:
    """A step is a 127th of the row's largest number; half of it is the most that rounding takes."""
    encoded(source, tmp_path / "s", dtype="int8")
    store = open_store(tmp_path / "s")
    largest = max(float(with_zarr(tmp_path / "s", split, "scales").max()) for split in store.splits)
    for difference in compare_sample(store, encoder, 60):
        assert 0 < difference.largest <= largest / 2 + 1e-5
        assert difference.cosine > 0.999


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", STATE_DTYPES)
def test_compressed_stores_hold_the_same_numbers_under_the_same_digest(
    source: Source, encoded: Encoding, content: Callable[[Path], dict[str, bytes]], tmp_path: Path, dtype: str
) -> None:
    for compress in ("none", "zstd"):
        encoded(source, tmp_path / compress, dtype=dtype, compress=compress)
        assert [each.fault for each in verify_store(tmp_path / compress) if each.fault] == []
    raw, squeezed = (open_store(tmp_path / compress) for compress in ("none", "zstd"))
    assert (raw.reads, squeezed.reads.partition(",")[0]) == ("memory map", "whole chunks")
    assert raw.digest == squeezed.digest
    names = ["hidden_states", "scales"] if dtype == "int8" else ["hidden_states"]
    for split in raw.splits:
        assert list(squeezed.manifest["splits"][split]["chunks"]) == names
        for name in names:
            arrays = [with_zarr(tmp_path / compress, split, name) for compress in ("none", "zstd")]
            assert arrays[0].tobytes() == arrays[1].tobytes()
        np.testing.assert_array_equal(raw[split].hidden_states[:], squeezed[split].hidden_states[:])
    files, others = (content(tmp_path / compress) for compress in ("none", "zstd"))
    assert files.keys() == others.keys()
    differing = {name.split("/", 2)[2] for name in files if files[name] != others[name]}
    assert {name.split("/c/")[0] for name in differing} == {*names, *(f"{name}/zarr.json" for name in names)}
    fields = [
        {k: v for k, v in store.manifest.items() if k not in ("files", "provenance")} for store in (raw, squeezed)
    ]
    assert (fields[0].pop("compression"), fields[1].pop("compression")) == ("none", "zstd")
    for each in fields:
        for split in each["splits"].values():
            del split["chunks"]
    assert fields[0] == fields[1]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "begun"])
def test_another_compression_is_other_work_until_overwritten(
    source: Source, encoded: Encoding, assert_same: Same, tmp_path: Path, finished: bool
) -> None:
    out = tmp_path / "s"
    encoded(source, tmp_path / "wanted", compress="none")
    if finished:
        encoded(source, out, compress="zstd")
    else:
        answers = iter([False, False, True])
        with pytest.raises(StoppedError):
            encoded(source, out, compress="zstd", stop=lambda: next(answers))
    with pytest.raises(IdentityError, match="these fields differ") as caught:
        encoded(source, out)
    assert [line.split() for line in caught.value.what.splitlines()[2:]] == [["compression", "zstd", "none"]]
    assert "--overwrite" in str(caught.value.remedy)
    assert encoded(source, out, overwrite=True).outcome == "encoded"
    assert_same(out, tmp_path / "wanted")


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_overwrite_of_the_same_compression_goes_on(
    source: Source, encoded: Encoding, tmp_path: Path
) -> None:
    answers = iter([False, False, True])
    with pytest.raises(StoppedError):
        encoded(source, tmp_path / "s", compress="zstd", overwrite=True, stop=lambda: next(answers))
    assert encoded(source, tmp_path / "s", compress="zstd", overwrite=True).outcome == "resumed"


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written to is NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(3).isnan().all())
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("rows", ["words", "words-mean"])
@pytest.mark.parametrize("dtype", STATE_DTYPES)
def test_rows_that_no_state_belongs_to_are_zeros_whatever_memory_held(
    masked_source: Source, encoded: Encoding, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: str, dtype: str
) -> None:
    """Masked rows, and those behind a split's last row, in the chunks' own bytes."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 16 * layout.row_bytes(4, 16, dtype))
    out, empty = tmp_path / "s", 0
    manifest = encoded(masked_source, out, rows=rows, dtype=dtype, max_length=12).manifest
    assert len(manifest["splits"]["train"]["chunks"]["hidden_states"]) > 5
    for split, fields in manifest["splits"].items():
        mask = open_store(out)[split].row_mask
        height = fields["rows_per_chunk"]
        for k in range(len(fields["chunks"]["hidden_states"])):
            filled = np.zeros(height, dtype=bool)
            filled[: len(mask[k * height : (k + 1) * height])] = mask[k * height : (k + 1) * height]
            for name in fields["chunks"]:
                tail = "/0" if name == "hidden_states" else ""
                raw = (out / f"states.zarr/{split}/{name}/c/{k}/0{tail}").read_bytes()[:-4]
                by_row = np.frombuffer(raw, np.uint8).reshape(4, height, -1).any(axis=2)  # [layers, rows_per_chunk]
                assert (by_row == filled).all()
            empty += int((~filled).sum())
    assert empty > 10


@pytest.mark.usefixtures("small_parts", "poisoned")
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_the_layer_that_is_not_finite_is_named_whatever_memory_held(
    masked_source: Source, encoded: Encoding, encoder: Encoder, tmp_path: Path, dtype: str
) -> None:
    bias = encoder.model.encoder.layer[1].output.dense.bias
    before = bias.detach().clone()
    try:
        with torch.inference_mode(False), torch.no_grad():
            bias.fill_(float("inf"))
        with pytest.raises(EncoderError) as caught:
            encoded(masked_source, tmp_path / "s", dtype=dtype, rows="words", max_length=12)
    finally:
        with torch.inference_mode(False), torch.no_grad():
            bias.copy_(before)
    assert caught.value.what.startswith("layer 2 of encoder ")
    assert caught.value.what.endswith(f" is not finite in {dtype}")
    assert list((tmp_path / "s" / "parts").iterdir()) == []


def test_numbers_that_are_finite_the_second_time_are_one_error(
    masked_source: Source, encoded: Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the hardware: the part is computed again to name the layer, and nothing is wrong with it."""
    monkeypatch.setattr("fusionkit.encode.parts.is_finite", lambda _: False)
    with pytest.raises(EncoderError, match="part 0 of train had numbers that are not finite; computed again"):
        encoded(masked_source, tmp_path / "s", rows="words", max_length=12)
    assert list((tmp_path / "s" / "parts").iterdir()) == []


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_an_empty_split_of_int8_is_a_store_all_the_same(encoded: Encoding, tmp_path: Path, compress: str) -> None:
    empty = pa.array([[], []], pa.list_(pa.string()))
    source = Source("s", {"train": pa.table({"tokens": empty, "tags": empty})})
    encoded(source, tmp_path / "s", rows="words", dtype="int8", compress=compress)
    split = open_store(tmp_path / "s")["train"]
    assert (split.hidden_states.shape, str(split.hidden_states.dtype)) == ((0, 4, 16), "float32")
    assert split.hidden_states[:].shape == split.take([1, 0]).hidden_states.shape == (0, 4, 16)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["chunks"] == {"hidden_states": [], "scales": []}
