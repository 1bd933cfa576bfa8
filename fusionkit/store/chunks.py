"""Files of chunks: numbers, raw or as a zstd frame, followed by four bytes of CRC-32C."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numcodecs import zstd
from numpy.typing import NDArray

from fusionkit.errors import StoreError
from fusionkit.io.files import write_pieces, write_synced
from fusionkit.io.places import Place, read_bytes, reading, unreadable
from fusionkit.store.direct_io import write_past_cache
from fusionkit.store.layout import CHECKSUM_BYTES, ZSTD_LEVEL, ChunkedArray, damaged_store

PIECE_BYTES = 1 << 20
LARGE_BYTES = 8 << 20  # chunks from this size on bypass the page cache; for smaller ones that does not pay

OTHER = "it is not the chunk that was recorded"
UNREAD = "cannot be read"


class Stamp(NamedTuple):
    """The CRC-32C of a written chunk's bytes, and the size of its file."""

    crc32c: int
    size: int


def write_chunk(path: Place, block: NDArray[Any], array: ChunkedArray, compression: str = "none") -> Stamp:
    """Write one chunk durably.

    Args:
        block: ``[layers, rows, …]``, at most as many rows as the array's chunks have; missing ones become zeros.
    """
    rows = block.shape[1]
    if rows < array.chunk_shape[1]:  # Zarr keeps a last chunk full-size
        whole = np.zeros(array.chunk_shape, block.dtype)
        whole[:, :rows] = block
        block = whole
    # Uncompressed, the block's memory is checksummed and written without a copy.
    raw = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    written = Checksummed(raw if compression == "none" else compressed(raw))
    write_pieces(path, written, write_past_cache if len(written.content) >= LARGE_BYTES else write_synced)
    return Stamp(written.crc32c, len(written.content) + CHECKSUM_BYTES)


class Checksummed:
    """Bytes in pieces, each checksummed just before it is written, followed by their CRC-32C.

    Checksums and writes release Python's global lock: on a GPU the thread that launches kernels needs it all the time.
    A piece is still in the core's cache when it is written.

    Attributes:
        content: uint8 ``[bytes]``. crc32c: of the pieces taken so far.
    """

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self.content, self.crc32c = content, 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        self.crc32c = 0
        for start in range(0, len(self.content), PIECE_BYTES):
            piece = self.content[start : start + PIECE_BYTES]
            self.crc32c = crc32c(piece.data, self.crc32c)
            yield piece.data
        yield struct.pack("<I", self.crc32c)


def compressed(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes compressed to one zstd frame, which Zarr's codec reads."""
    return np.frombuffer(zstd.compress(raw, ZSTD_LEVEL), np.uint8)


def map_chunk(path: Path, array: ChunkedArray) -> NDArray[Any]:
    """An uncompressed chunk as a read-only memory map ``[layers, rows_per_chunk, …]``.

    Raises:
        StoreError: the file is missing, its size is not that of the layout, or it cannot be read.
    """
    try:
        _check_size(path, path.stat().st_size, array)
        # A plain view: slicing the memmap subclass costs more than copying a few rows.
        return np.memmap(path, dtype=array.dtype, mode="r", shape=array.chunk_shape).view(np.ndarray)
    except OSError as error:
        raise (unreadable(path, error) or missing(path)) from error


def read_rows(path: Path, array: ChunkedArray, layer: int, start: int, out: NDArray[Any]) -> None:
    """Read rows of one layer of an uncompressed chunk, from row ``start`` on, into ``out``.

    Args:
        layer: the layer's position. out: ``[rows, …]``, contiguous.

    Raises:
        StoreError: the file is missing, its size is not that of the layout, or it cannot be read.
    """
    wanted = out.data.cast("B")
    at = (layer * array.chunk_shape[1] + start) * array.row_bytes
    try:
        with path.open("rb", buffering=0) as file:
            _check_size(path, os.fstat(file.fileno()).st_size, array)
            done = 0
            while done < len(wanted):  # the kernel may read less than was asked for
                got = os.preadv(file.fileno(), [wanted[done:]], at + done)
                if not got:
                    raise damaged_store(path, "it ends early")
                done += got
    except OSError as error:
        raise (unreadable(path, error) or missing(path)) from error


REPAIR = "`fusionkit verify STORE --repair` encodes missing and damaged chunks again"


def missing(path: Place) -> StoreError:
    return StoreError(f"chunk {path} is missing", remedy=REPAIR)


def _check_size(path: Path, size: int, array: ChunkedArray) -> None:
    if size != array.chunk_bytes + CHECKSUM_BYTES:
        raise StoreError(
            f"chunk {path} is damaged",
            expected=f"{array.chunk_bytes + CHECKSUM_BYTES} bytes",
            received=f"{size} bytes",
            remedy=REPAIR,
        )


def written_checksum(path: Path) -> int:
    """The CRC-32C at the end of a chunk's file.

    Raises:
        OSError, struct.error: there is no such file, or it is too short.
    """
    with path.open("rb") as file:
        file.seek(-CHECKSUM_BYTES, os.SEEK_END)
        return int(struct.unpack("<I", file.read())[0])


def read_chunk(path: Place, array: ChunkedArray, compression: str, recorded: int) -> NDArray[Any]:
    """A whole chunk ``[layers, rows_per_chunk, …]``, local or remote, checked by its checksum and the recorded one.

    Raises:
        StoreError: it is missing, damaged or another store's, or it cannot be read.
    """
    try:
        with reading(path):
            raw = read_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise missing(path) from None
    fault = _fault_of(raw, array, compression, recorded)
    if fault == OTHER:
        # Since its store was opened, another store may have written an undamaged chunk to this path.
        raise StoreError(f"chunk {path} is not the one that was recorded", remedy="open the store again")
    if fault is not None:
        raise StoreError(f"chunk {path} is damaged", received=fault, remedy=REPAIR)
    content: Any = memoryview(raw)[:-CHECKSUM_BYTES]
    if compression == "zstd":
        try:  # Not numcodecs: it makes room for as many bytes as the frame says.
            content = pa.decompress(content, array.chunk_bytes, "zstd")
        except (OSError, ValueError) as error:  # Arrow's own errors
            raise damaged_store(path, f"no zstd frame of {array.chunk_bytes} bytes") from error
    flat = np.frombuffer(content, array.dtype)
    return flat.reshape(array.chunk_shape).copy()  # its own memory, which readers can tell from a map


def chunk_fault(path: Place, array: ChunkedArray, compression: str, recorded: int) -> str | None:
    """What is wrong with a chunk's file: its size, its own checksum or the recorded one; None if nothing is."""
    try:
        return _fault_of(read_bytes(path), array, compression, recorded)
    except OSError as error:
        return reading_fault(path, error)


def reading_fault(path: Place, error: OSError) -> str:
    """What is wrong with a file whose reading failed; the error of a remote place is raised again."""
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        return "missing"
    if not isinstance(path, Path):
        raise error
    return f"{UNREAD}: {error.strerror or error}"


def _fault_of(raw: bytes, array: ChunkedArray, compression: str, recorded: int) -> str | None:
    """What is wrong with the content of a chunk's file; None if nothing is."""
    if compression == "none" and len(raw) != array.chunk_bytes + CHECKSUM_BYTES:
        return f"{len(raw)} bytes instead of {array.chunk_bytes + CHECKSUM_BYTES}"
    if len(raw) <= CHECKSUM_BYTES:
        return f"{len(raw)} bytes"
    found = crc32c(memoryview(raw)[:-CHECKSUM_BYTES])
    if found != struct.unpack("<I", raw[-CHECKSUM_BYTES:])[0]:
        return "its bytes do not match its checksum"
    return None if found == recorded else OTHER
