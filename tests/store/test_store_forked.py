"""Processes that are forked after something was read, as a DataLoader's workers are: they read on by themselves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionkit.store import open_store
from fusionkit.store.cache import ChunkCache
from fusionkit.store.layout import ChunkedArray

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    # What Python says of forks beside threads is what these tests are about.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
ARRAY = ChunkedArray("hidden_states", (2, 3, 4), "float32")


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


@pytest.mark.parametrize("limit", ["", "0"], ids=["cached", "not cached"])
@pytest.mark.parametrize(("dtype", "compression"), [("float16", "zstd"), ("int8", "zstd"), ("float16", "none")])
def test_a_child_reads_on_where_its_parent_has_read(
    laid: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, compression: str, limit: str
) -> None:
    monkeypatch.setenv("FUSIONKIT_CACHE", limit)
    known = laid(dtype, compression)
    states = open_store(known.path)["train"].hidden_states
    np.testing.assert_array_equal(states[:3], known.states[:3])
    assert in_a_child(lambda: np.array_equal(states[:], known.states)) == 0
    np.testing.assert_array_equal(states[:], known.states)
    assert in_a_child(lambda: in_a_child(lambda: np.array_equal(states[40:], known.states[40:])) == 0) == 0


def test_a_child_made_while_a_thread_writes_into_the_cache_writes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork waits until the thread is through."""
    cache, block = ChunkCache(tmp_path, 1 << 20), np.ones((2, 3, 4), np.float32)
    writing, forks = threading.Event(), threading.Event()
    really = ChunkCache._make_room

    def slowly(self: ChunkCache, wanted: int) -> None:
        writing.set()
        forks.wait(0.5)
        really(self, wanted)

    monkeypatch.setattr(ChunkCache, "_make_room", slowly)
    thread = threading.Thread(target=cache.get, args=("theirs", ARRAY, lambda: block))
    thread.start()
    assert writing.wait(60)

    def child() -> bool:
        return np.array_equal(cache.get("ours", ARRAY, lambda: block), block)

    assert in_a_child(child) == 0
    thread.join(60)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "ours", "theirs"}
