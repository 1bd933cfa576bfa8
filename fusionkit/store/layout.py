"""Where everything in a store lies, and the arrays it is made of.

    STORE/plan.json                        what will be encoded; written before any work
    STORE/manifest.json                    written last: its presence means complete
    STORE/states.zarr/{split}/…            Zarr v3 arrays
    STORE/examples/{split}.parquet         the source's columns
    STORE/parts/{split}-{00000}.json       one finished part (one chunk of hidden_states)

A chunk of ``hidden_states`` is ``[rows, layers, hidden]`` kept layer-major (Zarr's ``transpose`` codec): one
layer of all its rows is one run of bytes. Behind it stand four bytes of CRC-32C, little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec

from fusionkit.errors import StoreError

FORMAT, VERSION = "fusionkit-store", 1
CHUNK_BYTES = 64 << 20
CHECKSUM_BYTES = 4  # CRC-32C, behind each chunk
# A chunk is also a part, the unit of work that a killed job loses: no more than this many sub-tokens.
PART_TOKENS = 1 << 17
SMALL_CHUNK = 1 << 18  # elements a chunk of the small arrays

# float16 and float32 are Zarr's own; bfloat16 is none of its types and is kept as its bits.
ZARR_DTYPES = {"float16": "float16", "bfloat16": "uint16", "float32": "float32"}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
SMALL_ARRAYS = {
    "row_offsets": "int64",
    "row_mask": "bool",
    "token_offsets": "int64",
    "token_ids": "int32",
    "word_index": "int32",
    "segments": "uint8",
}
# An axis has one length in a group, or xarray refuses to open it: offsets are one longer than the examples.
AXES = {
    "row_offsets": "offsets",
    "row_mask": "rows",
    "token_offsets": "offsets",
    "token_ids": "tokens",
    "word_index": "tokens",
    "segments": "tokens",
}


@dataclass(frozen=True)
class StatesLayout:
    """The shape of one split's ``hidden_states`` and how it is cut into chunks.

    Attributes:
        rows, layers, hidden: the array's shape. rows_per_chunk: the chunks' height.
        dtype: ``float16``, ``bfloat16`` or ``float32``.
    """

    rows: int
    layers: int
    hidden: int
    rows_per_chunk: int
    dtype: str

    @property
    def chunks(self) -> int:
        """How many chunk files there are."""
        return -(-self.rows // self.rows_per_chunk)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk file without its checksum; the last one is as large as the others."""
        return self.rows_per_chunk * self.layers * self.hidden * ITEM_BYTES[self.dtype]

    def chunk_rows(self, chunk: int) -> tuple[int, int]:
        """The rows of one chunk, half-open."""
        start = chunk * self.rows_per_chunk
        return start, min(start + self.rows_per_chunk, self.rows)


def balanced_rows_per_chunk(rows: int, tokens: int, layers: int, hidden: int, dtype: str) -> int:
    """Rows a chunk: about 64 MiB and at most :data:`PART_TOKENS` sub-tokens, spread evenly over the split."""
    by_bytes = rows * layers * hidden * ITEM_BYTES[dtype] / CHUNK_BYTES
    chunks = max(1, round(by_bytes), -(-tokens // PART_TOKENS))
    return max(1, -(-rows // chunks))


def states_path(store: Path) -> Path:
    return store / "states.zarr"


def chunk_path(store: Path, split: str, chunk: int) -> Path:
    return states_path(store) / split / "hidden_states" / "c" / str(chunk) / "0" / "0"


def examples_path(store: Path, split: str) -> Path:
    return store / "examples" / f"{split}.parquet"


def part_path(store: Path, split: str, chunk: int) -> Path:
    return store / "parts" / f"{split}-{chunk:05d}.json"


def create_states(store: Path, split: str, layout: StatesLayout, layers: tuple[int, ...]) -> None:
    """The empty ``hidden_states`` array: its metadata, no chunk yet."""
    group = zarr.open_group(states_path(store), mode="a")
    group.create_array(
        f"{split}/hidden_states",
        shape=(layout.rows, layout.layers, layout.hidden),
        chunks=(layout.rows_per_chunk, layout.layers, layout.hidden),
        dtype=ZARR_DTYPES[layout.dtype],
        filters=[TransposeCodec(order=(1, 0, 2))],
        serializer=BytesCodec(endian="little"),
        compressors=[Crc32cCodec()],
        fill_value=0,
        attributes={"dtype": layout.dtype, "layers": list(layers)},
        dimension_names=("rows", "layers", "hidden"),
    )


def open_array(store: Path, split: str, name: str) -> zarr.Array[Any]:
    """One array of a split, read-only."""
    array = zarr.open_array(states_path(store) / split / name, mode="r")
    assert isinstance(array, zarr.Array)
    return array


def read_small(store: Path, split: str, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """A slice of one of the small arrays.

    Raises:
        StoreError: its files are missing or damaged.
    """
    try:
        return np.asarray(open_array(store, split, name)[start:stop])
    except Exception as error:  # zarr and its codecs raise OSError, KeyError, ValueError and RuntimeError
        raise damaged(states_path(store) / split / name, error) from error


def damaged(path: Path, error: Exception) -> StoreError:
    """The error for a file of a store that cannot be read."""
    return StoreError(
        f"{path} is damaged",
        received=f"{type(error).__name__}: {error}".splitlines()[0],
        remedy="see `fusionkit verify`, then encode again",
    )


class Appender:
    """Grows a one-dimensional array block by block; holds less than one chunk in memory."""

    def __init__(self, store: Path, split: str, name: str) -> None:
        group = zarr.open_group(states_path(store), mode="a")
        self.array = group.create_array(
            f"{split}/{name}",
            shape=(0,),
            chunks=(SMALL_CHUNK,),
            dtype=SMALL_ARRAYS[name],
            compressors=[ZstdCodec(level=3), Crc32cCodec()],
            dimension_names=(AXES[name],),
        )
        self.pending: list[NDArray[Any]] = []
        self.held = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        self.pending.append(values)
        self.held += len(values)
        if self.held >= SMALL_CHUNK:
            self._write(self.held - self.held % SMALL_CHUNK)

    def close(self) -> None:
        """Write what is left."""
        self._write(self.held)

    def _write(self, count: int) -> None:
        values = np.concatenate(self.pending) if self.pending else np.zeros(0, self.array.dtype)
        start = self.array.shape[0]
        self.array.resize((start + count,))
        if count:
            self.array[start:] = values[:count]
        self.pending, self.held = [values[count:]], self.held - count
