"""docs/store-format.md is enough to read a store: forty lines of NumPy give what fusionkit's reader gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.sources import Source, guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout, open_store

FILE = Path(__file__).with_name("numpy_reader.py")
CORPUS = Path(__file__).parent.parent.parent / "data" / "travel-desk" / "de"


@pytest.fixture(scope="session")
def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("numpy_reader", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reader_is_short_and_needs_numpy_alone() -> None:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    imported = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"numpy"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_known_numbers_of_each_precision_are_read(laid: Any, reader: ModuleType, dtype: str) -> None:
    known = laid(dtype, "none")
    found = reader.read_states(known.path, "train")
    if dtype == "bfloat16":
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.view(np.uint32) >> 16, known.states)
        tensor = open_store(known.path)["train"].hidden_states.gather(np.arange(len(known.states))).float()
        np.testing.assert_array_equal(found, tensor.numpy())
    else:
        assert found.dtype == known.states.dtype
        np.testing.assert_array_equal(found, known.states)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_compressed_states_are_not_read_and_the_reader_says_why(laid: Any, reader: ModuleType, dtype: str) -> None:
    known = laid(dtype, "zstd")
    with pytest.raises(ValueError, match="compressed with zstd: NumPy has no decoder"):
        reader.read_states(known.path, "train")


def test_checksums_behind_the_chunks_are_those_of_the_manifest(known: Any, reader: ModuleType) -> None:
    """Of what lies in the files: NumPy is enough, whatever the compression."""
    pairs = list(reader.checksums(known.path, "train"))
    assert len(pairs) == 5 * len(known.stored)
    assert all(told == behind for told, behind in pairs)


@pytest.mark.parametrize(("rows", "dtype"), [("tokens", "float16"), ("words", "float16"), ("words-mean", "int8")])
def test_encoded_stores_of_many_chunks_are_read(
    reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, dtype: str
) -> None:
    monkeypatch.setattr(layout, "CHUNK_BYTES", 1 << 16)
    whole, encoder = open_source(str(CORPUS)), load_encoder("minilm", device="cpu")
    source = Source("few", {split: whole.splits[split].head(10) for split in ("train", "test")})
    encode(source, guess_columns(source), tmp_path / "s", EncodeSpec(rows=rows, layers="0,6", dtype=dtype), encoder)
    store, chunks = open_store(tmp_path / "s"), 0
    for split in store.splits:
        found = reader.read_states(tmp_path / "s", split)
        np.testing.assert_array_equal(found, store[split].hidden_states[:])
        assert float(np.abs(found).max()) > 0.1
        chunks += len(list(reader.checksums(tmp_path / "s", split)))
    assert store.splits == ("train", "test")
    assert chunks >= 4
