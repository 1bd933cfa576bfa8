"""The files of a store and its arrays.

    STORE/plan.json                        what will be encoded; written before any work
    STORE/manifest.json                    written last: its presence means complete
    STORE/states.zarr/{split}/…            Zarr v3 arrays
    STORE/examples/{split}.parquet         the source's columns
    STORE/lm_head.safetensors              the encoder's LM head, only with rows of masked-tokens
    STORE/parts/{split}-{00000}.json       one finished part (one chunk of hidden_states)
    STORE/failed/{split}-{00000}.json      a part that could not be encoded, until it is tried again

A chunk of ``hidden_states`` is ``[rows, layers, hidden]``, stored layer-major (Zarr's ``transpose`` codec): one
layer of all its rows is contiguous. Four bytes of CRC-32C follow, little-endian. ``int8`` states have another array
``scales``, ``[rows, layers]``, chunked and ordered in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import FsspecStore

from fusionkit.errors import StoppedError, StoreError, first_line
from fusionkit.io.object_storage import Bounded
from fusionkit.io.places import AnyPlace, Place, refusal, unreadable
from fusionkit.specs import MASKED
from fusionkit.store.presence import EXAMPLES, STATES, states_path

FORMAT, VERSION = "fusionkit-store", 1
CHUNK_BYTES = 64 << 20
CHECKSUM_BYTES = 4  # CRC-32C, after each chunk
# A chunk is also a part, the unit of work that a killed job loses, so the sub-tokens of a chunk are limited.
PART_TOKENS = 1 << 17
SMALL_CHUNK = 1 << 18  # elements per chunk of the small arrays

# Zarr has no bfloat16: its bits are stored.
ZARR_DTYPES = {"float16": "float16", "bfloat16": "uint16", "float32": "float32", "int8": "int8"}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}
SCALE_BYTES = 4  # float32, one per row and layer of int8 states
ZSTD_LEVEL = 3
# The NumPy dtype and the axis name of each small array. xarray refuses a group in which an axis has two lengths, so
# offsets, which are one longer than the examples, have their own axis.
SMALL_ARRAYS = {
    "row_offsets": ("int64", "offsets"),
    "row_mask": ("bool", "rows"),
    "token_offsets": ("int64", "offsets"),
    "token_ids": ("int32", "tokens"),
    "word_index": ("int32", "tokens"),
    "segments": ("uint8", "tokens"),
    "first_alike": ("int64", "examples"),
}
# Only with rows of masked-tokens: a chosen sub-token's original id, and NOT_MASKED for all others, as transformers'
# masked LMs take their labels.
LABELS = {"mlm_labels": ("int32", "tokens")}
NOT_MASKED = -100

# Only where a pair of texts is stored as two sequences: the two sequences of each example. The other arrays then have
# entries for sequences; otherwise an example is one sequence.
PAIRS, SIDES = "pairs", 2


@dataclass(frozen=True)
class ChunkedArray:
    """One of the arrays whose chunks a part writes.

    Attributes:
        name: ``hidden_states`` or ``scales``. chunk_shape: of one chunk in its file, layers first.
        dtype: the name of its NumPy dtype.
    """

    name: str
    chunk_shape: tuple[int, ...]
    dtype: str

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk before compression and checksum; the last one is as large as the others."""
        return int(np.prod(self.chunk_shape)) * np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.chunk_shape[2:])) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class StatesLayout:
    """The shape of one split's states and how they are cut into chunks.

    Attributes:
        rows, layers, hidden: the array's shape. rows_per_chunk: rows of a chunk; the last one may have fewer.
        dtype: ``float16``, ``bfloat16``, ``float32`` or ``int8``. compression: ``none`` or ``zstd``.
    """

    rows: int
    layers: int
    hidden: int
    rows_per_chunk: int
    dtype: str
    compression: str = "none"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of ``hidden_states``."""
        return self.rows, self.layers, self.hidden

    @property
    def chunk_shape(self) -> tuple[int, int, int]:
        """The shape of one chunk of ``hidden_states``, in the order of the array's axes."""
        return self.rows_per_chunk, self.layers, self.hidden

    @property
    def arrays(self) -> tuple[ChunkedArray, ...]:
        """``hidden_states``, and ``scales`` where there are any."""
        shape = (self.layers, self.rows_per_chunk, self.hidden)
        states = ChunkedArray("hidden_states", shape, ZARR_DTYPES[self.dtype])
        scales = ChunkedArray("scales", shape[:2], "float32")
        return (states, scales) if self.dtype == "int8" else (states,)

    @property
    def chunks(self) -> int:
        return -(-self.rows // self.rows_per_chunk)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the files of one chunk, uncompressed, checksums included."""
        return sum(array.chunk_bytes + CHECKSUM_BYTES for array in self.arrays)

    def chunk_rows(self, chunk: int) -> tuple[int, int]:
        """The half-open range of a chunk's rows."""
        start = chunk * self.rows_per_chunk
        return start, min(start + self.rows_per_chunk, self.rows)


def balanced_rows_per_chunk(rows: int, tokens: int, layers: int, hidden: int, dtype: str) -> int:
    """Rows per chunk: about 64 MiB and at most :data:`PART_TOKENS` sub-tokens, spread evenly over the split."""
    by_bytes = rows * row_bytes(layers, hidden, dtype) / CHUNK_BYTES
    chunks = max(1, round(by_bytes), -(-tokens // PART_TOKENS))
    return max(1, -(-rows // chunks))


def row_bytes(layers: int, hidden: int, dtype: str) -> int:
    """Bytes of one stored row, uncompressed."""
    return layers * (hidden * ITEM_BYTES[dtype] + (SCALE_BYTES if dtype == "int8" else 0))


def chunk_name(split: str, chunk: int, array: str) -> str:
    """The path of a chunk's file inside its store."""
    return f"{STATES}/{split}/{array}/c/{chunk}/0" + ("/0" if array == "hidden_states" else "")


def chunk_path(store: AnyPlace, split: str, chunk: int, array: str = "hidden_states") -> AnyPlace:
    return store / chunk_name(split, chunk, array)


def examples_path(store: AnyPlace, split: str) -> AnyPlace:
    return store / EXAMPLES / f"{split}.parquet"


def small_arrays(rows: str) -> tuple[str, ...]:
    """The names of the small arrays of a store with this kind of rows."""
    return (*SMALL_ARRAYS, *LABELS) if rows == MASKED else tuple(SMALL_ARRAYS)


def part_path(store: AnyPlace, split: str, chunk: int) -> AnyPlace:
    return store / "parts" / f"{split}-{chunk:05d}.json"


def create_states(store: Path, split: str, layout: StatesLayout, layers: tuple[int, ...]) -> None:
    """Create the empty arrays of states: their metadata, no chunk yet."""
    group = zarr.open_group(states_path(store), mode="a")
    compressors = [ZstdCodec(level=ZSTD_LEVEL)] if layout.compression == "zstd" else []
    for array in layout.arrays:
        rank = len(array.chunk_shape)
        group.create_array(
            f"{split}/{array.name}",
            shape=layout.shape[:rank],
            chunks=layout.chunk_shape[:rank],
            dtype=array.dtype,
            filters=[TransposeCodec(order=(1, 0, 2)[:rank])],
            serializer=BytesCodec(endian=None if array.dtype == "int8" else "little"),
            compressors=[*compressors, Crc32cCodec()],
            fill_value=0,
            attributes={"dtype": layout.dtype if rank == 3 else array.dtype, "layers": list(layers)},
            dimension_names=("rows", "layers", "hidden")[:rank],
        )


def expected_codecs(layout: StatesLayout, array: ChunkedArray) -> list[str]:
    """What :func:`codecs_of` returns for an undamaged array of states."""
    order = (1, 0, 2)[: len(array.chunk_shape)]
    endian = [] if array.dtype == "int8" else ["little"]
    compressors = ["zstd"] if layout.compression == "zstd" else []
    return [f"transpose {order}", " ".join(["bytes", *endian]), *compressors, "crc32c"]


def codecs_of(array: zarr.Array[Any]) -> list[str]:
    """The names of an array's codecs, with the settings that decide the byte layout: memory maps rely on them."""
    metadata: Any = array.metadata
    found = []
    for codec in (codec.to_dict() for codec in metadata.codecs):
        settings = codec.get("configuration", {})
        found.append(" ".join([codec["name"], *(str(settings[k]) for k in ("order", "endian") if k in settings)]))
    return found


def open_array(store: Place, split: str, name: str) -> zarr.Array[Any]:
    """One array of a split, read-only."""
    array = zarr.open_array(_for_zarr(states_path(store) / split / name), mode="r", zarr_format=3)
    assert isinstance(array, zarr.Array)
    return array


def _for_zarr(place: Place) -> Path | FsspecStore:
    if isinstance(place, Path):
        return place
    address, options = str(place), dict(place.storage_options)
    found = FsspecStore.from_url(address, storage_options=options, read_only=True)
    if place.fs.async_impl:  # Zarr reads through its own filesystem: limit that one too
        found.fs = cast(Any, Bounded(found.fs, address))
    return found


class SmallArray:
    """One of the small arrays, opened when first read."""

    def __init__(self, store: Place, split: str, name: str) -> None:
        self._of = store, split, name

    @cached_property
    def _array(self) -> zarr.Array[Any]:
        return open_array(*self._of)

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """A slice of the array.

        Raises:
            StoreError: its files are missing or damaged.
        """
        try:
            return np.asarray(self._array[start:stop])
        except StoppedError:
            raise
        except Exception as error:  # zarr and its codecs raise OSError, KeyError, ValueError and RuntimeError
            store, split, name = self._of
            raise damaged_store(states_path(store) / split / name, error) from error


def read_small(store: Place, split: str, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Open one small array and read a slice of it, as :meth:`SmallArray.read` does."""
    return SmallArray(store, split, name).read(start, stop)


def checked_offsets(offsets: NDArray[Any], end: int | None, path: Place) -> NDArray[np.int64]:
    """Check that offsets, int64 ``[n + 1]``, go from 0 to ``end`` and never descend; return them.

    Zarr reads a missing chunk as zeros, and other programs may have written the store.

    Args:
        end: None for a slice of the offsets, which may begin and end anywhere.

    Raises:
        StoreError: they are not such offsets.
    """
    fault = None
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
        fault = f"{offsets.dtype} of shape {offsets.shape}"
    elif offsets[0] < 0 or (np.diff(offsets) < 0).any():
        fault = "below 0, or not ascending"
    elif end is not None and (offsets[0], offsets[-1]) != (0, end):
        fault = f"from {offsets[0]} to {offsets[-1]}, not from 0 to {end}"
    if fault is not None:
        raise damaged_store(path, f"the offsets are {fault}")
    return offsets


def damaged_store(path: Place, received: str | Exception) -> StoreError:
    """The error for a file of a store that cannot be read, from the error of reading it or what it holds."""
    if isinstance(received, Exception):
        missing = isinstance(received, FileNotFoundError)
        if not missing and (known := refusal(path, received) or unreadable(path, received)) is not None:
            return known
        received = first_line(received, kind=True)
    return StoreError(f"{path} is damaged", received=received, remedy="see `fusionkit verify`, then encode again")


class Appender:
    """Appends to one of the small arrays block by block; holds less than one chunk in memory.

    Args:
        axis: the name of the axis, if it is not that of :data:`SMALL_ARRAYS`.
    """

    def __init__(self, store: Path, split: str, name: str, axis: str | None = None) -> None:
        dtype, own = ("int64", "examples") if name == PAIRS else (SMALL_ARRAYS | LABELS)[name]
        inner = (SIDES,) if name == PAIRS else ()
        self.array = zarr.open_group(states_path(store), mode="a").create_array(
            f"{split}/{name}",
            shape=(0, *inner),
            chunks=(SMALL_CHUNK, *inner),
            dtype=dtype,
            compressors=[ZstdCodec(level=ZSTD_LEVEL), Crc32cCodec()],
            dimension_names=(axis or own, *(["sides"] if inner else [])),
        )
        self.pending: list[NDArray[Any]] = []
        self.pending_rows = 0

    def append(self, values: NDArray[Any]) -> None:
        self.pending.append(values)
        self.pending_rows += len(values)
        if self.pending_rows >= SMALL_CHUNK:
            self._write(self.pending_rows - self.pending_rows % SMALL_CHUNK)

    def close(self) -> None:
        self._write(self.pending_rows)

    def _write(self, count: int) -> None:
        start, *inner = self.array.shape
        values = np.concatenate(self.pending) if self.pending else np.zeros((0, *inner), self.array.dtype)
        self.array.resize((start + count, *inner))
        if count:
            self.array[start:] = values[:count]
        self.pending, self.pending_rows = [values[count:]], self.pending_rows - count
