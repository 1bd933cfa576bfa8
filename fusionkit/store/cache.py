"""A disk cache of fetched or decoded chunks: raw files under a size limit; least recently used ones are removed.

``FUSIONKIT_CACHE`` sets the limit (``50GB``; ``0`` keeps nothing; 20 GB unless set), ``FUSIONKIT_CACHE_DIR`` the
folder in which its folder ``chunks`` lies (``fusionkit`` in ``XDG_CACHE_HOME`` or ``~/.cache`` unless set).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c
from numpy.typing import NDArray

from fusionkit.errors import FusionkitError, StoreError, UsageError
from fusionkit.specs import parse_bytes
from fusionkit.store.chunks import map_chunk, write_chunk, written_checksum
from fusionkit.store.layout import CHECKSUM_BYTES, ChunkedArray

DEFAULT_LIMIT = 20 * 10**9
LOCK = ".lock"
_writing = threading.Lock()  # for disks without locks: at least one process's threads take turns
if hasattr(os, "register_at_fork"):
    # A fork waits for the lock. Otherwise the child could inherit it locked for ever, and with it another thread's lock
    # on the folder.
    os.register_at_fork(before=_writing.acquire, after_in_parent=_writing.release, after_in_child=_writing.release)


@dataclass(frozen=True)
class ChunkCache:
    """Decoded chunks by name.

    Attributes:
        folder: made for the first chunk. limit: the total bytes of all files.
    """

    folder: Path
    limit: int

    def get(self, name: str, array: ChunkedArray, fetch: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """A chunk ``[layers, rows_per_chunk, …]``: mapped from the cache, else fetched and kept there.

        Args:
            fetch: returns the chunk. Its errors pass through.
        """
        path = self.folder / name
        with contextlib.suppress(StoreError, OSError):
            found = map_chunk(path, array)
            # A power cut may leave a file with the right size and wrong content.
            if written_checksum(path) == crc32c(found.data):
                with contextlib.suppress(OSError):  # in a read-only cache
                    os.utime(path)
                return found
        block = fetch()
        size = array.chunk_bytes + CHECKSUM_BYTES
        if size > self.limit:
            return block
        try:
            with self._locked():
                self._make_room(size)
                write_chunk(path, block, array)
                return map_chunk(path, array)
        except (FusionkitError, OSError):  # a full or read-only disk: slower, not wrong
            return block

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock: two processes that make room at once would both count the same bytes as free."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _writing, (self.folder / LOCK).open("a") as file:
            with contextlib.suppress(OSError):  # some network disks have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, wanted: int) -> None:
        """Remove the least recently used files until ``wanted`` more bytes fit below the limit."""
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room too
                facts = path.stat()
                if path.name != LOCK:
                    files.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total + wanted <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def _default_folder() -> Path:
    if named := os.environ.get("FUSIONKIT_CACHE_DIR"):
        return Path(named).expanduser()  # a file of settings, unlike a shell, leaves ~ as it is
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusionkit"
    except RuntimeError as error:
        raise UsageError(
            "there is no folder for the cache",
            received="a user without a home folder",
            remedy="set FUSIONKIT_CACHE_DIR",
        ) from error


def default_cache() -> ChunkCache:
    """The cache as the environment variables set it.

    Raises:
        UsageError: ``FUSIONKIT_CACHE`` is no number of bytes, or there is no folder for it.
    """
    folder = _default_folder() / "chunks"
    given = os.environ.get("FUSIONKIT_CACHE", "")
    if not given:
        return ChunkCache(folder, DEFAULT_LIMIT)
    try:
        return ChunkCache(folder, 0 if given.strip() == "0" else parse_bytes(given))
    except UsageError as error:
        raise UsageError(
            "FUSIONKIT_CACHE is no size",
            expected="like 50GB, or 0",
            received=given,
            remedy="correct FUSIONKIT_CACHE, or unset it",
        ) from error
