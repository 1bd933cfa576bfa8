"""Chunk files of ``hidden_states``: raw numbers and four bytes of CRC-32C behind them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from fusionkit.errors import StoreError
from fusionkit.files import write_durably
from fusionkit.store.layout import CHECKSUM_BYTES, ZARR_DTYPES, StatesLayout


def write_chunk(path: Path, block: NDArray[Any], layout: StatesLayout) -> int:
    """Write one chunk durably.

    Args:
        block: ``[layers, rows, hidden]``, at most ``rows_per_chunk`` rows; missing ones become zeros.

    Returns:
        the CRC-32C of its bytes.
    """
    layers, rows, hidden = block.shape
    if rows < layout.rows_per_chunk:  # Zarr keeps a last chunk full-size
        whole = np.zeros((layers, layout.rows_per_chunk, hidden), block.dtype)
        whole[:, :rows] = block
        block = whole
    raw = np.ascontiguousarray(block)  # its own memory is summed and written: no copy as bytes
    checksum = int(google_crc32c.value(raw))
    write_durably(path, raw.data.cast("B"), struct.pack("<I", checksum))
    return checksum


def map_chunk(path: Path, layout: StatesLayout) -> NDArray[Any]:
    """A chunk as a read-only memory map ``[layers, rows_per_chunk, hidden]``.

    Raises:
        StoreError: the file is missing or not of the size that the layout gives.
    """
    shape = (layout.layers, layout.rows_per_chunk, layout.hidden)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise StoreError(f"chunk {path} is missing", remedy="see `fusionkit verify`, then encode again") from None
    if size != layout.chunk_bytes + CHECKSUM_BYTES:
        raise StoreError(
            f"chunk {path} is damaged",
            expected=f"{layout.chunk_bytes + CHECKSUM_BYTES} bytes",
            received=f"{size} bytes",
            remedy="see `fusionkit verify`, then encode again",
        )
    # A plain view: slicing the memmap subclass costs more than copying a few rows.
    return np.memmap(path, dtype=ZARR_DTYPES[layout.dtype], mode="r", shape=shape).view(np.ndarray)


def written_checksum(path: Path) -> int:
    """The CRC-32C that stands behind a chunk.

    Raises:
        OSError, struct.error: there is no such file, or it is too short.
    """
    with path.open("rb") as file:
        file.seek(-CHECKSUM_BYTES, os.SEEK_END)
        return int(struct.unpack("<I", file.read())[0])


def chunk_fault(path: Path, layout: StatesLayout, recorded: int | None) -> str | None:
    """What is wrong with a chunk file, or None: its size, its own checksum, the recorded checksum."""
    if not path.is_file():
        return "missing"
    raw = path.read_bytes()
    if len(raw) != layout.chunk_bytes + CHECKSUM_BYTES:
        return f"{len(raw)} bytes instead of {layout.chunk_bytes + CHECKSUM_BYTES}"
    found = int(google_crc32c.value(raw[:-CHECKSUM_BYTES]))
    if found != struct.unpack("<I", raw[-CHECKSUM_BYTES:])[0]:
        return "its bytes do not match its checksum"
    if recorded is not None and found != recorded:
        return "it is not the chunk that was recorded"
    return None
