"""A store of known numbers, laid down array by array, without any encoder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fusionkit.files import write_json
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import Appender, StatesLayout, chunk_path, create_states, examples_path
from fusionkit.store.verify import small_files

ROWS, LAYERS, HIDDEN, PER_CHUNK = 47, 3, 5, 10  # four whole chunks and one of seven rows
LENGTHS = [3, 0, 9, 1, 12, 4, 0, 17, 1, 0]  # rows an example


@dataclass(frozen=True)
class Known:
    """A store's folder and the numbers in it.

    Attributes:
        states: ``[rows, layers, hidden]``, bits as uint16 where the dtype is bfloat16.
    """

    path: Path
    states: NDArray[Any]
    mask: NDArray[np.bool_]
    lengths: list[int]
    texts: list[str]


def lay_down(path: Path, dtype: str) -> Known:
    rng = np.random.default_rng(7)
    numpy_dtype = "uint16" if dtype == "bfloat16" else dtype
    # Bits of finite bfloat16 numbers only: NaN is not equal to itself.
    states = rng.integers(0, 1 << 14, (ROWS, LAYERS, HIDDEN)) if dtype == "bfloat16" else rng.normal(
        size=(ROWS, LAYERS, HIDDEN)
    )  # fmt: skip
    states = states.astype(numpy_dtype)
    mask = rng.random(ROWS) < 0.8
    states[~mask] = 0
    texts = [f"text {i}, größer" for i in range(len(LENGTHS))]
    layout = StatesLayout(ROWS, LAYERS, HIDDEN, PER_CHUNK, dtype)
    create_states(path, "train", layout, (0, 2, 4))
    checksums = []
    for chunk in range(5):
        block = states[chunk * PER_CHUNK : (chunk + 1) * PER_CHUNK].transpose(1, 0, 2)
        checksums.append(write_chunk(chunk_path(path, "train", chunk), block, layout.arrays[0]).crc32c)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    arrays = {
        "row_offsets": offsets,
        "row_mask": mask,
        "token_offsets": offsets,
        "token_ids": np.arange(100, 100 + ROWS, dtype=np.int32),
        "word_index": np.zeros(ROWS, dtype=np.int32),
        "segments": np.zeros(ROWS, dtype=np.uint8),
    }
    for name, values in arrays.items():
        appender = Appender(path, "train", name)
        appender.append(values)
        appender.close()
    examples_path(path, "train").parent.mkdir()
    pq.write_table(pa.table({"text": texts, "label": list(range(len(LENGTHS)))}), examples_path(path, "train"))
    split = {"examples": len(LENGTHS), "rows": ROWS, "tokens": ROWS, "rows_per_chunk": PER_CHUNK, "masked": 0, "cut": 0}
    identity = {
        "encoder": {"weights": "none", "revision": None}, "rows": "tokens", "layers": [0, 2, 4], "dtype": dtype,
        "compute_dtype": "float32", "columns": {"tokens": None}, "data": {"train": "known"}, "versions": {},
    }  # fmt: skip
    manifest = {
        "format": "fusionkit-store", "version": 1, "source": "known", "identity": identity, "rows": "tokens",
        "layers": [0, 2, 4], "hidden": HIDDEN, "dtype": dtype, "compression": "none",
        "batch_tokens": 1024,
        "columns": {"text": "text", "pair": None, "tokens": None, "tags": [], "labels": ["label"]},
        "encoder": {"name": "none", "layers": 5, "parameters": 1, "sentence_rows": "cls"},
        "splits": {"train": {**split, "chunks": {"hidden_states": checksums}}}, "files": small_files(path),
        "provenance": {"created": "2000-01-01T00:00:00Z", "seconds": 1.5, "device": "cpu"},
    }  # fmt: skip
    write_json(path / "manifest.json", manifest)
    return Known(path, states, mask, LENGTHS, texts)


@pytest.fixture(scope="session", params=["float16", "float32", "bfloat16"])
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """One store of each precision, not to be changed."""
    return lay_down(tmp_path_factory.mktemp("stores") / "known", request.param)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return lay_down(tmp_path_factory.mktemp("stores") / "original", "float16")


@pytest.fixture
def fresh(original: Known, tmp_path: Path) -> Known:
    """A store of one's own, to spoil."""
    return replace(original, path=Path(shutil.copytree(original.path, tmp_path / "known")))
