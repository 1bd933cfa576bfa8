"""One store in other programs: arrays in zarr, xarray, tensorstore, zarrs; examples in pandas, polars, DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
import tensorstore
import xarray as xr
import zarr
from numpy.typing import NDArray

from fusionkit.store import open_store

Array = NDArray[Any]
AXES = {
    "hidden_states": ("rows", "layers", "hidden"), "row_offsets": ("offsets",), "row_mask": ("rows",),
    "token_offsets": ("offsets",), "token_ids": ("tokens",), "word_index": ("tokens",), "segments": ("tokens",),
    "first_alike": ("examples",),
}  # fmt: skip
SCALES = {"scales": ("rows", "layers")}  # of int8 alone


def with_zarr(group: Path, name: str) -> Array:
    return np.asarray(zarr.open_array(group / name, mode="r")[...])


def with_zarrs(group: Path, name: str) -> Array:
    """The Rust codecs behind zarr's own interface."""
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(group / name, mode="r")
        assert type(array.async_array.codec_pipeline).__name__ == "ZarrsCodecPipeline"
        return np.asarray(array[...])


def with_xarray(group: Path, name: str) -> Array:
    with xr.open_zarr(group, consolidated=False, chunks=None) as dataset:
        return np.asarray(dataset[name].values)


def with_tensorstore(group: Path, name: str) -> Array:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(group / name)}}
    return np.asarray(tensorstore.open(spec, read=True, open=True).result().read().result())


READERS = [with_zarr, with_zarrs, with_xarray, with_tensorstore]


@pytest.mark.parametrize("read", READERS)
def test_every_array_has_the_same_values_everywhere(known: Any, read: Callable[[Path, str], Array]) -> None:
    offsets = np.cumsum([0, *known.lengths])
    rows = len(known.states)
    expected: dict[str, Array] = {
        **known.stored,
        "row_offsets": offsets,
        "row_mask": known.mask,
        "token_offsets": offsets,
        "token_ids": np.arange(100, 100 + rows, dtype=np.int32),
        "word_index": np.zeros(rows, np.int32),
        "segments": np.zeros(rows, np.uint8),
        "first_alike": np.array([-1, 1, -1, -1, -1, -1, 1, -1, -1, 1]),
    }
    group = known.path / "states.zarr" / "train"
    axes = AXES | SCALES if "scales" in known.stored else AXES
    assert expected.keys() == axes.keys() == {path.name for path in group.iterdir() if path.is_dir()}
    for name, values in expected.items():
        found = read(group, name)
        assert found.dtype == values.dtype, name
        np.testing.assert_array_equal(found, values, err_msg=name)


@pytest.mark.parametrize("read", READERS)
def test_states_of_int8_times_their_scales_are_the_readers_numbers(
    laid: Any, read: Callable[[Path, str], Array]
) -> None:
    for compression in ("none", "zstd"):
        known = laid("int8", compression)
        group = known.path / "states.zarr" / "train"
        numbers = read(group, "hidden_states") * read(group, "scales")[:, :, None]  # [rows, layers, hidden]
        np.testing.assert_array_equal(numbers, open_store(known.path)["train"].hidden_states[:])


def test_xarray_knows_the_axes(known: Any) -> None:
    with xr.open_zarr(known.path / "states.zarr" / "train", consolidated=False, chunks=None) as dataset:
        axes = AXES | SCALES if "scales" in known.stored else AXES
        assert {str(name): array.dims for name, array in dataset.variables.items()} == axes
        assert dataset["hidden_states"].attrs["layers"] == [0, 2, 4]
        numbers = dataset["hidden_states"]
        if "scales" in known.stored:
            numbers = numbers * dataset["scales"]  # by the names of the axes
        chosen = numbers.isel(rows=slice(8, 23), layers=1)
        np.testing.assert_array_equal(chosen.values, known.states[8:23, 1])


def with_pandas(path: Path) -> list[tuple[Any, ...]]:
    frame = pd.read_parquet(path)
    return list(zip(frame["text"].tolist(), frame["label"].tolist(), strict=True))


def with_polars(path: Path) -> list[tuple[Any, ...]]:
    return pl.read_parquet(path).select("text", "label").rows()


def with_duckdb(path: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute("SELECT text, label FROM read_parquet(?)", [str(path)]).fetchall()


def with_datasets(path: Path) -> list[tuple[Any, ...]]:
    found = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))
    return list(zip(found["text"], found["label"], strict=True))


@pytest.mark.parametrize("read", [with_pandas, with_polars, with_duckdb, with_datasets])
def test_the_examples_are_the_same_everywhere(known: Any, read: Callable[[Path], list[tuple[Any, ...]]]) -> None:
    expected = [(text, number) for number, text in enumerate(known.texts)]
    assert read(known.path / "examples" / "train.parquet") == expected
