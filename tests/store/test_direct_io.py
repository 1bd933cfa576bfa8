"""Files that are written past the page cache have every byte, whatever the file system takes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fusionkit.errors import FusionkitError
from fusionkit.io.files import write_pieces
from fusionkit.machine.memory import page_aligned
from fusionkit.store import chunks
from fusionkit.store.chunks import write_chunk
from fusionkit.store.direct_io import BUFFER_BYTES, O_DIRECT, PAGE, write_past_cache
from fusionkit.store.layout import ChunkedArray

SIZES = [0, 1, PAGE - 1, PAGE, PAGE + 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + PAGE + 7]


def cut(content: bytes) -> Iterator[bytes]:
    """Pieces that begin and end anywhere, an empty one among them."""
    yield b""
    for start, stop in zip([0, 5, 12_000], [5, 12_000, len(content)], strict=True):
        yield content[start:stop]


@pytest.mark.parametrize("size", SIZES)
def test_any_size_is_written_whole(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(b"longer than it will be" * 9)
    write_past_cache(tmp_path / "file", cut(content))
    assert (tmp_path / "file").read_bytes() == content
    write_pieces(tmp_path / "other", cut(content), write_past_cache)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["file", "other"]
    assert (tmp_path / "other").read_bytes() == content


@pytest.mark.parametrize("size", [each for each in SIZES if each])
def test_whole_pages_of_aligned_memory_are_written_without_a_copy(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = page_aligned([size], torch.uint8).numpy()
    block[:] = np.frombuffer(os.urandom(size), np.uint8)
    begin, written, uncopied = block.ctypes.data, os.write, []

    def write(handle: int, data: memoryview) -> int:
        at = np.frombuffer(data, np.uint8).ctypes.data if data else 0
        uncopied.extend([len(data)] * (begin <= at < begin + size))
        return written(handle, data)

    monkeypatch.setattr(os, "write", write)
    pieces = [block[start : start + BUFFER_BYTES].data for start in range(0, size, BUFFER_BYTES)]
    write_past_cache(tmp_path / "file", [*pieces, b"end"])
    assert (tmp_path / "file").read_bytes() == block.tobytes() + b"end"
    assert sum(uncopied) == size // PAGE * PAGE


@pytest.mark.skipif(not O_DIRECT, reason="this system has no such writes")
@pytest.mark.parametrize("refused", ["open", "write"])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_such_writes_gets_usual_ones(
    code: int, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, written = os.open, os.write
    seen = set[bool]()

    def open_(path: Path, flags: int, mode: int = 0o777) -> int:
        if refused == "open" and flags & O_DIRECT:
            raise OSError(code, os.strerror(code))
        return opened(path, flags, mode)

    def write(handle: int, data: memoryview) -> int:
        direct = bool(fcntl.fcntl(handle, fcntl.F_GETFL) & O_DIRECT)
        seen.add(direct)
        if refused == "write" and direct:
            raise OSError(code, os.strerror(code))
        return written(handle, data)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "write", write)
    content = os.urandom(2 * BUFFER_BYTES + 3)
    write_past_cache(tmp_path / "file", [content])
    assert (tmp_path / "file").read_bytes() == content
    assert seen == ({False} if refused == "open" else {True, False})


def test_the_rest_of_a_short_write_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: written(handle, data[: max(PAGE, len(data) // 3 - 100)]))
    content = os.urandom(BUFFER_BYTES + 9 * PAGE + 1)
    write_past_cache(tmp_path / "file", [content])
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_large_chunk_has_the_bytes_of_a_small_ones_way(
    compression: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = ChunkedArray("hidden_states", (3, 500, 16), "float16")
    block = np.random.default_rng(0).standard_normal((3, 499, 16)).astype(np.float16)
    usual = write_chunk(tmp_path / "usual", block, array, compression)
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    assert write_chunk(tmp_path / "large", block, array, compression) == usual
    assert (tmp_path / "large").read_bytes() == (tmp_path / "usual").read_bytes()


@pytest.mark.parametrize("size", [BUFFER_BYTES, PAGE, 1])
@pytest.mark.parametrize("taken", [0, PAGE])
def test_a_full_disk_is_told_wherever_it_comes(
    size: int, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, left = os.write, [taken]

    def write(handle: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= (now := min(left[0], len(data)))
        return written(handle, data[:now])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(FusionkitError, match="the disk is full"):
        write_pieces(tmp_path / "file", [bytes(size), bytes(PAGE)], write_past_cache)
    assert not [*tmp_path.iterdir()]
