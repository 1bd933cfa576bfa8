"""Offsets are checked when they are read: whoever made a store may have written anything into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr

from fusionkit.errors import StoreError
from fusionkit.store import open_store

SPOILT: dict[str, Callable[[Any], Any]] = {
    "below 0": lambda offsets: np.where(np.arange(len(offsets)) == 3, -5, offsets),
    "not ascending": lambda offsets: offsets[[0, 1, 3, 2, *range(4, len(offsets))]],
    "huge inside": lambda offsets: np.where(np.arange(len(offsets)) == 3, 2**62, offsets),
    "huge at the end": lambda offsets: np.where(offsets == offsets[-1], 2**62, offsets),
    "not from 0 on": lambda offsets: np.maximum(offsets, 2),
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("name", ["row_offsets", "token_offsets"])
@pytest.mark.parametrize("how", SPOILT)
def test_offsets_that_are_none_are_refused_when_they_are_read(fresh: Any, name: str, how: str) -> None:
    array = zarr.open_array(fresh.path / "states.zarr" / "train" / name, mode="r+")
    array[:] = SPOILT[how](np.asarray(array[:]))
    split = open_store(fresh.path)["train"]
    with pytest.raises(StoreError, match="offsets are") as caught:
        getattr(split, name)
    assert name in caught.value.what
    if name == "row_offsets":
        with pytest.raises(StoreError):
            split.take([0])


@pytest.mark.parametrize("names", [None, ["label"], []])
def test_examples_that_are_too_few_are_refused(fresh: Any, names: list[str] | None) -> None:
    path = fresh.path / "examples" / "train.parquet"
    pq.write_table(pq.read_table(path)[:-1], path)
    split = open_store(fresh.path)["train"]
    with pytest.raises(StoreError, match="parquet is damaged") as caught:
        _ = split.examples if names is None else split.columns(names)
    assert caught.value.received == "9 examples, not 10"  # no exception of Python's


def test_a_manifest_of_a_thousand_trillion_rows_is_refused_at_once(fresh: Any) -> None:
    """Also where the array's own metadata says the same."""
    for file in (fresh.path / "manifest.json", fresh.path / "states.zarr" / "train" / "hidden_states" / "zarr.json"):
        text = file.read_text().replace('"rows": 47', f'"rows": {10**15}').replace("47,\n", f"{10**15},\n")
        file.write_text(text)
    with pytest.raises(StoreError, match="100,000,000,000,000 chunks of 1,000,000,000,000,000 rows"):
        open_store(fresh.path)
