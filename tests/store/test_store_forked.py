"""Processes that are forked after something was read, as a DataLoader's workers are: they read on by themselves.

A fresh process forks them: in this one, packages that other tests have imported have threads and fork handlers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionkit.store import open_store
from fusionkit.store.cache import ChunkCache
from fusionkit.store.layout import ChunkedArray

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
ARRAY = ChunkedArray("hidden_states", (2, 3, 4), "float32")


@pytest.fixture(scope="module")
def forking() -> Iterator[ProcessPoolExecutor]:
    """The process that forks, for all tests: it imports torch."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def in_a_child(does: Callable[[], bool]) -> int:
    """The exit status of a forked child: 0 where it did so; one that hangs is ended by a signal."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        status = 1
        try:
            status = 0 if does() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def children_read_on(store: Path, known: NDArray[Any], limit: str) -> list[int]:
    """Read some rows; the exit statuses of a child that reads all, and of one whose own child reads the last ones."""
    os.environ.update(FUSIONKIT_CACHE=limit, FUSIONKIT_CACHE_DIR=str(store.with_name("cache")))
    states = open_store(store)["train"].hidden_states
    np.testing.assert_array_equal(states[:3], known[:3])
    first = in_a_child(lambda: np.array_equal(states[:], known))
    np.testing.assert_array_equal(states[:], known)
    return [first, in_a_child(lambda: in_a_child(lambda: np.array_equal(states[40:], known[40:])) == 0)]


@pytest.mark.parametrize("limit", ["", "0"], ids=["cached", "not cached"])
@pytest.mark.parametrize(("dtype", "compression"), [("float16", "zstd"), ("int8", "zstd"), ("float16", "none")])
def test_a_child_reads_on_where_its_parent_has_read(
    laid: Any, forking: ProcessPoolExecutor, dtype: str, compression: str, limit: str
) -> None:
    known = laid(dtype, compression)
    assert forking.submit(children_read_on, known.path, known.states, limit).result() == [0, 0]


def child_writes_too(folder: Path) -> int:
    """Let a thread write into a cache slowly; the exit status of a child made meanwhile, which writes into it too."""
    cache, block = ChunkCache(folder, 1 << 20), np.ones((2, 3, 4), np.float32)
    writing, forks = threading.Event(), threading.Event()
    really = ChunkCache._make_room

    def slowly(self: ChunkCache, wanted: int) -> None:
        writing.set()
        forks.wait(0.5)
        really(self, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkCache, "_make_room", slowly)
        thread = threading.Thread(target=cache.get, args=("theirs", ARRAY, lambda: block))
        thread.start()
        assert writing.wait(60)
        status = in_a_child(lambda: np.array_equal(cache.get("ours", ARRAY, lambda: block), block))
        thread.join(60)
    return status


def test_a_child_made_while_a_thread_writes_into_the_cache_writes_too(
    tmp_path: Path, forking: ProcessPoolExecutor
) -> None:
    """The fork waits until the thread is through."""
    assert forking.submit(child_writes_too, tmp_path).result() == 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "ours", "theirs"}
