"""Stores of pairs as two sequences: read with NumPy alone, and refused where something is missing or does not fit."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.errors import StoreError
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store, verify_store

FIRST = ["rain", "snow", "rain", "soup of fish", "snow"]
SECOND = ["snow", "rain", "rain", "snow", "ice"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five pairs of four texts, rows of tokens, layers 0 and 6; not to be changed."""
    out = tmp_path_factory.mktemp("stores") / "pairs"
    source = Source("pairs", {"train": pa.table({"sentence1": FIRST, "sentence2": SECOND, "label": [0, 1, 0, 1, 0]})})
    spec = EncodeSpec(rows="tokens", layers="0,6")
    encode(source, guess_columns(source), out, spec, load_encoder("minilm", device="cpu"))
    return out


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "s"))


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads((path / "manifest.json").read_text())
    change(value)
    (path / "manifest.json").write_text(json.dumps(value))


def test_numpy_alone_reads_the_states(original: Path) -> None:
    place = Path(__file__).with_name("numpy_reader.py")
    spec = importlib.util.spec_from_file_location("numpy_reader", place)
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    split = open_store(original)["train"]
    found = reader.read_states(original, "train")
    np.testing.assert_array_equal(found, split.hidden_states[:])
    assert split.pairs.tolist() == [[0, 1], [1, 0], [0, 0], [2, 1], [1, 3]]
    # Special tokens on both sides of 1, 1, 3 and 1 words, each a sub-token.
    assert split.row_offsets.tolist() == [0, 3, 6, 11, 14]
    taken = split.take([3])
    np.testing.assert_array_equal(taken.hidden_states.numpy(), np.concatenate([found[6:11], found[3:6]]))
    assert taken.row_offsets.tolist() == [0, 5, 8]


# What is changed in a manifest, and the field that is then named.
MISFITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another form": (lambda m: m["identity"].update(pair_as="three"), "identity.pair_as"),
    "no form": (lambda m: m["identity"].pop("pair_as"), "splits.train.sequences"),
    "no sequences": (lambda m: m["splits"]["train"].pop("sequences"), "splits.train.sequences"),
    "a text": (lambda m: m["splits"]["train"].update(sequences="4"), "splits.train.sequences"),
    "below zero": (lambda m: m["splits"]["train"].update(sequences=-1), "splits.train.sequences"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_manifest_that_contradicts_itself_is_refused(copy: Path, misfit: str) -> None:
    change, field = MISFITS[misfit]
    rewrite(copy, change)
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(copy)
    assert caught.value.expected == f"a valid field {field!r}"


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "sequences": (lambda m: m["splits"]["train"].update(sequences=5), "sequences (5,) in states.zarr, not (6,)"),
    "examples": (lambda m: m["splits"]["train"].update(examples=4), "examples (5, 2) in states.zarr, not (4, 2)"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_does_not_fit_the_arrays_is_refused(copy: Path, lie: str) -> None:
    change, told = LIES[lie]
    rewrite(copy, change)
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(copy)["train"]
    assert caught.value.received == f"train: {told}"


def test_pairs_that_are_missing_are_no_pairs_of_zeros(copy: Path) -> None:
    """To Zarr a missing chunk is a chunk of zeros."""
    chunk = "states.zarr/train/pairs/c/0/0"
    (copy / chunk).unlink()
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(copy)["train"].take([0])
    assert "the pairs are not of the 4 sequences" in str(caught.value.received)
    assert [each.path for each in verify_store(copy) if each.fault == "missing"] == [chunk]


def test_a_store_without_its_array_of_pairs_is_damaged(copy: Path) -> None:
    shutil.rmtree(copy / "states.zarr" / "train" / "pairs")
    with pytest.raises(StoreError, match="is damaged"):
        open_store(copy)["train"]
