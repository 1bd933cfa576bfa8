"""The cache of chunks on disk: below its limit, the longest unused out first, never a wrong byte."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionkit.errors import StoreError, UsageError
from fusionkit.store.cache import DEFAULT_LIMIT, ChunkCache, default_cache
from fusionkit.store.layout import ChunkedArray

ARRAY = ChunkedArray("hidden_states", (2, 3, 4), "float32")
SIZE = 2 * 3 * 4 * 4 + 4  # and four bytes of checksum


def chunk(number: int) -> NDArray[np.float32]:
    return np.full((2, 3, 4), number, np.float32)


class Counted:
    """Gives chunks and remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, number: int) -> Callable[[], NDArray[Any]]:
        def fetch() -> NDArray[Any]:
            self.asked.append(number)
            return chunk(number)

        return fetch


@pytest.fixture
def fetch() -> Counted:
    return Counted()


def held(cache: ChunkCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir() if not path.name.startswith("."))


def total(cache: ChunkCache) -> int:
    sizes = []
    for path in cache.folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was being written, and has its name by now
            sizes.append(path.stat().st_size)
    return sum(sizes)


def test_a_chunk_is_fetched_once_and_then_mapped(tmp_path: Path, fetch: Counted) -> None:
    cache = ChunkCache(tmp_path / "deep" / "cache", 10 * SIZE)
    for _ in range(3):
        np.testing.assert_array_equal(cache.get("a", ARRAY, fetch(1)), chunk(1))
        np.testing.assert_array_equal(cache.get("b", ARRAY, fetch(2)), chunk(2))
    again = ChunkCache(cache.folder, cache.limit).get("a", ARRAY, fetch(7))
    assert fetch.asked == [1, 2]
    np.testing.assert_array_equal(again, chunk(1))
    assert not again.flags.writeable
    assert not again.flags.owndata
    assert held(cache) == ["a", "b"]


def test_a_read_only_cache_is_used(tmp_path: Path, fetch: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    cache = ChunkCache(tmp_path, 10 * SIZE)
    monkeypatch.setattr(os, "utime", refuse)
    for _ in range(2):
        np.testing.assert_array_equal(cache.get("a", ARRAY, fetch(1)), chunk(1))
    assert fetch.asked == [1]


@pytest.mark.parametrize("limit", [3 * SIZE, 3 * SIZE + 1, 4 * SIZE - 1])
def test_the_longest_unused_chunks_make_room(tmp_path: Path, fetch: Counted, limit: int) -> None:
    cache = ChunkCache(tmp_path, limit)
    for when, name in enumerate("abc"):
        cache.get(name, ARRAY, fetch(when))
        os.utime(tmp_path / name, (when, when))
    cache.get("a", ARRAY, fetch(9))  # used again: now the newest
    cache.get("d", ARRAY, fetch(3))
    assert held(cache) == ["a", "c", "d"]
    assert total(cache) == 3 * SIZE <= limit
    cache.get("e", ARRAY, fetch(4))
    assert held(cache) == ["a", "d", "e"]
    assert fetch.asked == [0, 1, 2, 3, 4]


def test_a_limit_below_a_chunk_keeps_nothing(tmp_path: Path, fetch: Counted) -> None:
    for limit in (0, SIZE - 1):
        cache = ChunkCache(tmp_path / "cache", limit)
        for _ in range(2):
            np.testing.assert_array_equal(cache.get("a", ARRAY, fetch(1)), chunk(1))
    assert fetch.asked == [1] * 4
    assert not (tmp_path / "cache").exists()


def test_what_a_killed_process_left_is_counted_and_removed(tmp_path: Path, fetch: Counted) -> None:
    (tmp_path / ".a.7.partial").write_bytes(b"x" * SIZE)
    (tmp_path / "old").write_bytes(b"x" * 2 * SIZE)
    cache = ChunkCache(tmp_path, 3 * SIZE)
    for path in tmp_path.iterdir():
        os.utime(path, (5, 5))
    cache.get("a", ARRAY, fetch(1))
    assert total(cache) <= 3 * SIZE
    for number, name in enumerate("bcd"):
        cache.get(name, ARRAY, fetch(number))
    assert held(cache) == ["b", "c", "d"]
    assert {path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")} == set()


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "other checksum": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "cut": lambda raw: raw[:-5],
    "longer": lambda raw: raw + b"\0",
    "empty": lambda raw: b"",
    "zeros": lambda raw: b"\0" * len(raw),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_damaged_file_is_fetched_again(tmp_path: Path, fetch: Counted, spoilt: str) -> None:
    cache = ChunkCache(tmp_path, 2 * SIZE)
    cache.get("a", ARRAY, fetch(5))
    sound = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(SPOILT[spoilt](sound))
    for _ in range(2):
        np.testing.assert_array_equal(cache.get("a", ARRAY, fetch(5)), chunk(5))
    assert fetch.asked == [5, 5]
    assert (tmp_path / "a").read_bytes() == sound


def test_an_error_of_the_fetch_passes_through_and_nothing_is_kept(tmp_path: Path) -> None:
    def fail() -> NDArray[Any]:
        raise StoreError("chunk 7 is missing")

    cache = ChunkCache(tmp_path / "cache", 10 * SIZE)
    with pytest.raises(StoreError, match="chunk 7 is missing"):
        cache.get("a", ARRAY, fail)
    assert not (tmp_path / "cache").exists()


@pytest.fixture(params=["read-only", "a file", "full"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that nothing can be written to."""
    folder = tmp_path / "cache"
    if request.param == "a file":
        folder.write_bytes(b"")
    elif request.param == "read-only":
        folder.mkdir(mode=0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("root writes everywhere")
    else:
        # The one thing that a test cannot bring about: a disk without room. /dev/full is one.
        folder.mkdir()
        really = Path.open

        def full(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            return really(Path("/dev/full") if mode == "wb" else path, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", full)
    yield folder
    folder.chmod(0o700)


def test_a_disk_that_takes_nothing_is_slower_and_not_wrong(unusable: Path, fetch: Counted) -> None:
    cache = ChunkCache(unusable, 10 * SIZE)
    for _ in range(2):
        np.testing.assert_array_equal(cache.get("a", ARRAY, fetch(5)), chunk(5))
    assert fetch.asked == [5, 5]


def test_threads_and_caches_of_one_folder_stay_below_the_limit_together(tmp_path: Path) -> None:
    """As the splits of a store, each with a cache of its own."""
    caches = [ChunkCache(tmp_path, 3 * SIZE) for _ in range(4)]

    def read(worker: int) -> bool:
        rng = np.random.default_rng(worker)
        for number in rng.integers(0, 9, 30).tolist():
            found = caches[worker].get(str(number), ARRAY, lambda number=number: chunk(number))  # type: ignore[misc]
            if total(caches[worker]) > 3 * SIZE or not np.array_equal(found, chunk(number)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [True] * 4


# Writes one chunk into the cache and says so.
OTHER = """
import sys
import numpy as np
from pathlib import Path
from fusionkit.store.cache import ChunkCache
from fusionkit.store.layout import ChunkedArray

array = ChunkedArray("hidden_states", (2, 3, 4), "float32")
print("begun", flush=True)
ChunkCache(Path(sys.argv[1]), int(sys.argv[2])).get("theirs", array, lambda: np.zeros((2, 3, 4), "float32"))
"""


def test_another_process_waits_while_one_makes_room(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", OTHER, tmp_path, str(SIZE)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"begun\n"
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.3)
            assert held(ChunkCache(tmp_path, SIZE)) == []
            fcntl.flock(file, fcntl.LOCK_UN)
        assert other.returncode == 0
    assert held(ChunkCache(tmp_path, SIZE)) == ["theirs"]


def test_the_environment_sets_the_limit_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FUSIONKIT_CACHE", "FUSIONKIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == ChunkCache(tmp_path / ".cache" / "fusionkit" / "chunks", 20 * 10**9)
    assert DEFAULT_LIMIT == 20_000_000_000
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().folder == tmp_path / "xdg" / "fusionkit" / "chunks"
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path / "mine"))
    assert default_cache().folder == tmp_path / "mine" / "chunks"
    for given, limit in (
        ("0", 0),
        (" 0 ", 0),
        ("50GB", 50 * 10**9),
        ("300MiB", 300 * 2**20),
        ("123", 123),
        ("", 20 * 10**9),
    ):
        monkeypatch.setenv("FUSIONKIT_CACHE", given)
        assert default_cache().limit == limit
    for given in ("plenty", "-1", "50 G", "0GB", "nan", "1e9"):
        monkeypatch.setenv("FUSIONKIT_CACHE", given)
        with pytest.raises(UsageError, match="FUSIONKIT_CACHE is no size") as caught:
            default_cache()
        assert caught.value.received == given


def test_other_files_beside_the_chunks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetch: Counted) -> None:
    """The folder that the user names may hold other things: chunks have one of their own inside."""
    (tmp_path / "thesis.pdf").write_bytes(b"x" * 10 * SIZE)
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSIONKIT_CACHE", str(SIZE))
    for number in range(3):
        default_cache().get(str(number), ARRAY, fetch(number))
    assert (tmp_path / "thesis.pdf").stat().st_size == 10 * SIZE
    assert held(default_cache()) == ["2"]
    shutil.rmtree(tmp_path / "chunks")
    default_cache().get("0", ARRAY, fetch(0))
    assert held(default_cache()) == ["0"]
