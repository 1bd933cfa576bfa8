"""Other programs open a store: Zarr its arrays, pandas and Arrow its examples; and what the layout promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr

from fusionkit.errors import UsageError
from fusionkit.store import layout, open_store
from fusionkit.store.chunks import Checksummed
from fusionkit.store.layout import Appender, balanced_rows_per_chunk


def test_zarr_reads_the_same_states(known: Any) -> None:
    array = zarr.open_array(known.path / "states.zarr" / "train" / "hidden_states", mode="r")
    np.testing.assert_array_equal(np.asarray(array[:]), known.stored["hidden_states"])
    np.testing.assert_array_equal(np.asarray(array[8:33:5, 1]), known.stored["hidden_states"][8:33:5, 1])


def test_zarr_knows_the_axes_and_the_precision(known: Any) -> None:
    group = zarr.open_group(known.path / "states.zarr", mode="r")
    array = group["train/hidden_states"]
    assert isinstance(array, zarr.Array)
    assert (array.shape, array.chunks) == ((47, 3, 5), (10, 3, 5))
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("rows", "layers", "hidden")
    assert array.attrs["layers"] == [0, 2, 4]
    assert array.attrs["dtype"] == {"uint16": "bfloat16"}.get(str(array.dtype), str(array.dtype))
    scales = ["scales"] if array.dtype == np.int8 else []
    assert sorted(dict(group["train"].arrays())) == [  # type: ignore[union-attr]
        "first_alike", "hidden_states", "row_mask", "row_offsets", *scales, "segments", "token_ids", "token_offsets",
        "word_index",
    ]  # fmt: skip


def test_zarr_knows_the_axes_of_scales_and_gives_the_numbers_with_them(laid: Any) -> None:
    for compression in ("none", "zstd"):
        known = laid("int8", compression)
        group = zarr.open_group(known.path / "states.zarr" / "train", mode="r")
        states, scales = group["hidden_states"], group["scales"]
        assert isinstance(states, zarr.Array)
        assert isinstance(scales, zarr.Array)
        assert (scales.shape, scales.chunks, str(scales.dtype)) == ((47, 3), (10, 3), "float32")
        assert scales.metadata.to_dict()["dimension_names"] == ("rows", "layers")
        assert (scales.attrs["layers"], scales.attrs["dtype"]) == ([0, 2, 4], "float32")
        numbers = np.asarray(states[:]) * np.asarray(scales[:])[..., None]
        found = open_store(known.path)["train"].hidden_states[:]
        assert found.dtype == numbers.dtype == np.float32
        np.testing.assert_array_equal(found, numbers)


def test_a_chunk_file_is_the_rows_layer_by_layer_and_a_checksum(known: Any) -> None:
    for name, values in known.stored.items():
        for chunk in range(5):
            raw = (known.path / f"states.zarr/train/{name}/c/{chunk}/0{'/0' * (values.ndim - 2)}").read_bytes()
            rows = np.zeros((10, *values.shape[1:]), values.dtype)
            rows[: min(10, 47 - 10 * chunk)] = values[10 * chunk : 10 * chunk + 10]
            content = rows.swapaxes(0, 1).tobytes()
            kept = raw[:-4]
            if known.compression == "zstd":  # Arrow's decoder
                kept = pa.decompress(kept, decompressed_size=len(content), codec="zstd").to_pybytes()
            assert kept == content
            assert int.from_bytes(raw[-4:], "little") == google_crc32c.value(raw[:-4])


def test_a_checksum_taken_piece_by_piece_is_that_of_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).integers(0, 256, 10_001, dtype=np.uint8)
    monkeypatch.setattr("fusionkit.store.chunks.PIECE_BYTES", 1000)
    for size in (0, 1, 999, 1000, 1001, 10_001):
        written = Checksummed(content[:size])
        for _ in range(2):  # an upload may be tried again
            *pieces, last = written
            assert b"".join(pieces) == content[:size].tobytes()
            assert int.from_bytes(last, "little") == written.crc32c == google_crc32c.value(content[:size].tobytes())


def test_zarr_itself_writes_the_same_chunk_files(known: Any, tmp_path: Path) -> None:
    """The same metadata, the numbers written through Zarr's own codecs."""
    for name, values in known.stored.items():
        shutil.copytree(known.path / "states.zarr" / "train" / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "c")
        zarr.open_array(tmp_path / name, mode="r+")[:] = values
        ours, theirs = (
            {file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*") if file.is_file()}
            for place in (known.path / "states.zarr" / "train" / name, tmp_path / name)
        )
        assert sorted(ours) == sorted(theirs)
        assert len(ours) == 6
        assert ours == theirs


def test_pandas_reads_the_examples(known: Any) -> None:
    frame = pd.read_parquet(known.path / "examples" / "train.parquet")
    assert frame["text"].tolist() == known.texts
    pd.testing.assert_frame_equal(frame, open_store(known.path)["train"].examples)


def test_a_store_says_what_it_is(known: Any) -> None:
    store = open_store(str(known.path))
    assert (store.name, store.splits, store.rows) == ("known", ("train",), "tokens")
    assert (store.layers, store.hidden) == ((0, 2, 4), 5)
    split = store["train"]
    assert (split.name, len(split)) == ("train", 10)
    assert np.diff(split.row_offsets).tolist() == known.lengths
    assert split.row_mask.tolist() == known.mask.tolist()
    assert [str(array.dtype) for array in (split.row_offsets, split.word_index)] == ["int64", "int32"]
    assert store["train"] is split
    assert "train" in repr(store)


def test_a_split_that_is_not_there_is_named(known: Any) -> None:
    with pytest.raises(UsageError, match="unknown split 'trian'") as caught:
        open_store(known.path)["trian"]
    assert caught.value.remedy == "did you mean 'train'?"


@pytest.mark.parametrize("sizes", [[0], [5], [16], [3, 4, 9, 1, 0, 40, 2], [16, 16, 1]])
def test_an_array_grown_in_blocks_is_their_concatenation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    monkeypatch.setattr(layout, "SMALL_CHUNK", 16)
    blocks = [np.random.default_rng(i).integers(0, 99, size).astype(np.int32) for i, size in enumerate(sizes)]
    appender = Appender(tmp_path, "train", "token_ids")
    for block in blocks:
        appender.append(block)
        assert appender.pending_rows < 16
    appender.close()
    stored = zarr.open_array(tmp_path / "states.zarr" / "train" / "token_ids", mode="r")
    assert (stored.shape, str(stored.dtype)) == ((sum(sizes),), "int32")
    assert np.asarray(stored[:]).tolist() == np.concatenate(blocks).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
@pytest.mark.parametrize("layers_hidden", [(7, 384), (25, 1024), (1, 16)])
def test_chunks_are_about_64_mib_and_even(dtype: str, layers_hidden: tuple[int, int]) -> None:
    layers, hidden = layers_hidden
    row = layers * {"float16": 2 * hidden, "bfloat16": 2 * hidden, "float32": 4 * hidden, "int8": hidden + 4}[dtype]
    for rows in (1, 1000, 12_344, 100_003, 3_000_017):
        height = balanced_rows_per_chunk(rows, 0, layers, hidden, dtype)
        chunks = -(-rows // height)
        assert chunks == 1 or 2 / 3 < height * row / 2**26 < 3 / 2
        # Even: one row less a chunk would need another chunk; what the last one wastes is small.
        assert 0 <= chunks * height - rows < chunks


def test_a_part_has_few_enough_sub_tokens_however_small_its_rows() -> None:
    """One row an example of 300 sub-tokens: bytes alone would make a single part of a quarter of an hour's work."""
    for examples in (400, 5000, 70_000):
        height = balanced_rows_per_chunk(examples, examples * 300, 7, 384, "float16")
        assert height * 300 <= 131_072 + 300


def test_the_manifest_is_readable_json(known: Any) -> None:
    assert json.loads((known.path / "manifest.json").read_text(encoding="utf-8"))["format"] == "fusionkit-store"
