"""A store of known numbers, written array by array, without any encoder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fusionkit.io.files import write_json
from fusionkit.specs import COMPRESSIONS, STATE_DTYPES
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import Appender, StatesLayout, chunk_path, create_states, examples_path
from fusionkit.store.verify import small_files

ROWS, LAYERS, HIDDEN, PER_CHUNK = 47, 3, 5, 10  # four whole chunks and one of seven rows
LENGTHS = [3, 0, 9, 1, 12, 4, 0, 17, 1, 0]  # rows per example


@dataclass(frozen=True)
class Known:
    """A store's folder and the numbers in it.

    Attributes:
        states: ``[rows, layers, hidden]`` as a reader gives them: bits as uint16 where the dtype is bfloat16, float32
            where it is int8. stored: what the arrays hold, by their names. compression: ``none`` or ``zstd``.
    """

    path: Path
    states: NDArray[Any]
    stored: dict[str, NDArray[Any]]
    compression: str
    mask: NDArray[np.bool_]
    lengths: list[int]
    texts: list[str]


def known_arrays(dtype: str, mask: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """``hidden_states``, and for int8 ``scales``; zeros where ``mask`` is False."""
    rng, shape = np.random.default_rng(7), (ROWS, LAYERS, HIDDEN)
    if dtype == "bfloat16":  # bits of finite numbers only: NaN is not equal to itself
        states = rng.integers(0, 1 << 14, shape).astype("uint16")
    elif dtype == "int8":
        states = rng.integers(-127, 128, shape).astype("int8")
    else:
        states = rng.normal(size=shape).astype(dtype)
    scales = rng.random((ROWS, LAYERS)).astype("float32")
    states[~mask], scales[~mask] = 0, 0
    return {"hidden_states": states, "scales": scales} if dtype == "int8" else {"hidden_states": states}


def lay_down(path: Path, dtype: str, compression: str = "none") -> Known:
    mask = np.random.default_rng(8).random(ROWS) < 0.8
    stored = known_arrays(dtype, mask)
    states = stored["hidden_states"]
    if dtype == "int8":
        states = states.astype(np.float32) * stored["scales"][..., None]
    texts = [f"text {i}, größer" for i in range(len(LENGTHS))]
    layout = StatesLayout(ROWS, LAYERS, HIDDEN, PER_CHUNK, dtype, compression)
    create_states(path, "train", layout, (0, 2, 4))
    checksums: dict[str, list[int]] = {}
    for array in layout.arrays:
        for chunk in range(5):
            block = stored[array.name][chunk * PER_CHUNK : (chunk + 1) * PER_CHUNK].swapaxes(0, 1)
            stamp = write_chunk(chunk_path(path, "train", chunk, array.name), block, array, compression)
            checksums.setdefault(array.name, []).append(stamp.crc32c)
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    arrays = {
        "row_offsets": offsets,
        "row_mask": mask,
        "token_offsets": offsets,
        "token_ids": np.arange(100, 100 + ROWS, dtype=np.int32),
        "word_index": np.zeros(ROWS, dtype=np.int32),
        "segments": np.zeros(ROWS, dtype=np.uint8),
        "first_alike": np.array([-1, 1, -1, -1, -1, -1, 1, -1, -1, 1]),
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
        "compute_dtype": "float32", "max_length": 256, "columns": {"tokens": None}, "data": {"train": "known"},
        "versions": {},
    }  # fmt: skip
    manifest = {
        "format": "fusionkit-store", "version": 1, "source": "known", "identity": identity, "rows": "tokens",
        "layers": [0, 2, 4], "hidden": HIDDEN, "dtype": dtype, "compression": compression,
        "batch_tokens": 1024, "batch_overhead": 32,
        "columns": {"text": "text", "pair": None, "tokens": None, "tags": [], "labels": ["label"]},
        "encoder": {"name": "none", "layers": 5, "parameters": 1, "sentence_rows": "cls"},
        "splits": {"train": {**split, "chunks": checksums}}, "files": small_files(path),
        "provenance": {"created": "2000-01-01T00:00:00Z", "seconds": 1.5, "device": "cpu"},
    }  # fmt: skip
    write_json(path / "manifest.json", manifest)
    return Known(path, states, stored, compression, mask, LENGTHS, texts)


KINDS = [(dtype, compression) for compression in COMPRESSIONS for dtype in STATE_DTYPES]


@pytest.fixture(scope="session", params=KINDS, ids="-".join)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """One store of each precision, compressed and not; tests must not change it."""
    return lay_down(tmp_path_factory.mktemp("stores") / "known", *request.param)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return lay_down(tmp_path_factory.mktemp("stores") / "original", "float16")


@pytest.fixture
def fresh(original: Known, tmp_path: Path) -> Known:
    """A copy of a store that the test may damage."""
    return replace(original, path=Path(shutil.copytree(original.path, tmp_path / "known")))


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Known]:
    """Writes a store of any precision and compression for this test, with a cache of its own that hides no damage."""
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path / "cache"))
    return lambda dtype, compression: lay_down(tmp_path / f"{dtype}-{compression}", dtype, compression)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache decoded chunks among the tests' files."""
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("FUSIONKIT_CACHE", raising=False)
