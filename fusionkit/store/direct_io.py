"""Writing past the page cache (O_DIRECT): for large files that are synced anyway.

A write through the cache copies every byte into pages that the kernel must find and clear first, on a core that the
encoder needs too. Past the cache, the disk reads the writer's memory (`benchmarks/write_ceiling.py` measures both).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

# O_DIRECT needs addresses, offsets and sizes that are multiples of the disk's block; a page is one on every disk.
PAGE = mmap.PAGESIZE
BUFFER_BYTES = 1 << 20  # larger writes were slower: the buffer no longer stays in the core's cache
O_DIRECT = getattr(os, "O_DIRECT", 0)  # only Linux has it
UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)  # errors of file systems without such writes


def write_past_cache(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new file from pieces of any size, and sync it; through the cache if the file system has no such writes.

    Raises:
        OSError: as ``open`` and ``write`` raise it.
    """
    handle = _opened(path)
    # The map is not closed here: after an error the traceback still holds views of it, and then closing would fail.
    buffer, filled = memoryview(mmap.mmap(-1, BUFFER_BYTES)), 0
    try:
        for piece in pieces:
            left = memoryview(piece).cast("B")
            if not filled and _address(left) % PAGE == 0:  # whole pages need no copy
                pages = len(left) // PAGE * PAGE
                _write(handle, left[:pages])
                left = left[pages:]
            while left:
                taken = min(len(left), BUFFER_BYTES - filled)
                buffer[filled : filled + taken] = left[:taken]
                left, filled = left[taken:], filled + taken
                if filled == BUFFER_BYTES:
                    _write(handle, buffer)
                    filled = 0
        whole = filled // PAGE * PAGE
        _write(handle, buffer[:whole])
        _through_cache(handle)  # the end is not a whole page
        _write(handle, buffer[whole:filled])
        os.fsync(handle)
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | O_DIRECT, 0o666)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return os.open(path, flags, 0o666)


def _address(data: memoryview) -> int:
    """Where the bytes lie in memory."""
    return int(np.frombuffer(data, np.uint8).ctypes.data) if data else 0


def _write(handle: int, data: memoryview) -> None:
    while data:
        try:
            taken = os.write(handle, data)
        except OSError as error:
            if error.errno not in UNSUPPORTED or not _through_cache(handle):
                raise
            continue  # some file systems open such files and refuse to write them
        data = data[taken:]
        if taken % PAGE:
            _through_cache(handle)  # a nearly full disk may write only a part; the rest then begins inside a page


def _through_cache(handle: int) -> bool:
    """Write the rest of a file through the cache; returns whether that is a change."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~O_DIRECT)
    return bool(flags & O_DIRECT)
