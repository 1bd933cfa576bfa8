"""Reading a store on S3: the local one's numbers, chunks fetched ahead and kept, what is missing or damaged told."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionkit.errors import StoreError, UsageError
from fusionkit.store import open_store

Stores = Callable[..., Path]
Encoding = Callable[..., Any]
CHUNK = "states.zarr/train/hidden_states/c/{}/0/0"
SPECS: list[dict[str, str]] = [{}, {"dtype": "int8"}, {"compress": "zstd"}, {"dtype": "bfloat16", "rows": "mean"}]


def fetched(requests: Any) -> list[str]:
    """The chunks of the train split that were asked for, by number."""
    keys = [key for operation, key in requests if operation == "GetObject" and "/train/hidden_states/c/" in key]
    return [key.split("/c/")[1].split("/")[0] for key in keys]


@pytest.mark.product
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("limit", ["", "0"], ids=["cached", "not cached"])
def test_states_are_those_of_the_local_store(
    copied: Callable[..., Any], local: Stores, monkeypatch: pytest.MonkeyPatch, spec: dict[str, str], limit: str
) -> None:
    monkeypatch.setenv("FUSIONKIT_CACHE", limit)
    here, there = open_store(local(**spec)), open_store(copied(local(**spec)))
    assert there.splits == here.splits == ("train", "validation")
    for split in here.splits:
        ours, theirs = here[split].hidden_states, there[split].hidden_states
        assert theirs.shape == ours.shape
        keys = (slice(None), slice(3, -5), -1, ([7, 0, 7], 1), (slice(None, None, 3), slice(1, 3)), (..., 2))
        for key in keys:
            np.testing.assert_array_equal(theirs[key], ours[key])
        for indices, layers in (([3, 0, 3], None), (np.arange(len(here[split])) % 2 == 0, [2, 0])):
            taken, expected = there[split].take(indices, layers), here[split].take(indices, layers)
            assert taken.hidden_states.equal(expected.hidden_states)
            np.testing.assert_array_equal(taken.row_offsets, expected.row_offsets)
            np.testing.assert_array_equal(taken.row_mask, expected.row_mask)
        assert there[split].examples.equals(here[split].examples)


def test_a_second_reader_does_not_ask_for_cached_chunks(
    copied: Callable[..., Any], local: Stores, requests: Any, cache_folder: Path
) -> None:
    out = copied(local())
    whole = open_store(out)["train"].hidden_states[:]
    assert sorted(fetched(requests), key=int) == [str(chunk) for chunk in range(10)]  # each once
    assert len(list(cache_folder.glob("*-hidden_states-*[0-9]"))) == 10
    for chunk in range(10):
        (out / CHUNK.format(chunk)).unlink()
    requests.clear()
    np.testing.assert_array_equal(open_store(out)["train"].hidden_states[:], whole)
    assert fetched(requests) == []
    np.testing.assert_array_equal(open_store(local())["train"].hidden_states[:], whole)


def test_chunks_are_fetched_before_they_are_asked_for(
    copied: Callable[..., Any], local: Stores, requests: Any, cache_folder: Path
) -> None:
    """Read from the start, those that lie behind; of rows chosen over the whole split, those chosen."""
    height = open_store(local()).manifest["splits"]["train"]["rows_per_chunk"]
    states = open_store(copied(local()))["train"].hidden_states
    _ = states[:height]
    assert arrived(cache_folder, 5) == {0, 1, 2, 3, 4}
    _ = states[height : 2 * height]
    assert arrived(cache_folder, 6) == {0, 1, 2, 3, 4, 5}
    _ = states[9 * height :]
    assert arrived(cache_folder, 7) == {0, 1, 2, 3, 4, 5, 9}
    requests.clear()
    states = open_store(copied(local(compress="zstd"), "t"))["train"].hidden_states
    _ = states[np.array([8, 1, 9, 5]) * height]
    assert sorted(map(int, fetched(requests))) == [1, 5, 8, 9]
    assert requests.peak > 1


def arrived(folder: Path, count: int) -> set[int]:
    """The numbers of the chunks in the cache, once there are so many."""
    found: set[int] = set()
    for _ in range(10_000):
        found = {int(path.name.rpartition("-")[2]) for path in folder.glob("*-hidden_states-*[0-9]")}
        if len(found) >= count:
            break
        threading.Event().wait(0.01)
    return found


def test_the_cache_stays_below_its_limit(
    copied: Callable[..., Any], local: Stores, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (local() / CHUNK.format(0)).stat().st_size
    monkeypatch.setenv("FUSIONKIT_CACHE", str(3 * size + 1))
    here, there = open_store(local()), open_store(copied(local()))
    rng = np.random.default_rng(0)
    for _ in range(8):
        for split in there.splits:
            rows = rng.integers(0, len(there[split].hidden_states), 3)
            np.testing.assert_array_equal(there[split].hidden_states[rows], here[split].hidden_states[rows])
            assert sum(sizes(cache_folder)) <= 3 * size + 1
    assert len(list(cache_folder.glob("*-hidden_states-*[0-9]"))) == 3


def sizes(folder: Path) -> Iterator[int]:
    """Of the files in a folder, those included that are being written."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has its name by now
            yield path.stat().st_size


@pytest.mark.parametrize("compress", ["none", pytest.param("zstd", marks=pytest.mark.soak("products"))])
def test_a_store_made_anew_at_the_same_address_is_read_anew(
    bucket: Any, encoded: Encoding, local: Stores, cache_folder: Path, compress: str
) -> None:
    """Also where somebody still reads the old one: what comes then is refused, and is not kept as a chunk of it."""
    out, encoded, local = bucket / "s", partial(encoded, compress=compress), partial(local, compress=compress)
    encoded(out, layers="0,1")
    old = open_store(out)["train"].hidden_states
    first = old[:3]
    arrived(cache_folder, 5)
    encoded(out, layers="1,2", overwrite=True)  # of the same shape
    other = local(layers="1,2")
    assert not np.array_equal(open_store(other)["train"].hidden_states[:3], first)
    np.testing.assert_array_equal(
        open_store(out)["train"].hidden_states[:], open_store(other)["train"].hidden_states[:]
    )
    with pytest.raises(StoreError, match="is not the one that was recorded"):
        _ = old[-3:]
    encoded(out, layers="0,1", overwrite=True)
    again = open_store(local(layers="0,1"))
    np.testing.assert_array_equal(open_store(out)["train"].hidden_states[:], again["train"].hidden_states[:])


@pytest.mark.product
@pytest.mark.parametrize("spoilt", ["missing", "flipped", "cut", "empty"])
@pytest.mark.parametrize("spec", [{}, {"dtype": "int8"}, {"compress": "zstd"}], ids=str)
def test_a_bad_chunk_is_one_error_and_no_numbers(
    copied: Callable[..., Any], local: Stores, spoilt: str, spec: dict[str, str]
) -> None:
    out = copied(local(**spec))
    path = out / CHUNK.format(2)
    whole = path.read_bytes()
    if spoilt == "missing":
        path.unlink()
    else:
        path.write_bytes({"flipped": bytes([whole[0] ^ 1]) + whole[1:], "cut": whole[:-9], "empty": b""}[spoilt])
    split = open_store(out)["train"]
    for _ in range(2):  # what failed is not kept
        with pytest.raises(
            StoreError, match=r"c/2/0/0 is " + ("missing" if spoilt == "missing" else "damaged")
        ) as caught:
            _ = split.hidden_states[:]
    assert "fusionkit verify" in str(caught.value.remedy)
    height = open_store(local(**spec)).manifest["splits"]["train"]["rows_per_chunk"]
    expected = open_store(local(**spec))["train"].hidden_states[: 2 * height]
    np.testing.assert_array_equal(split.hidden_states[: 2 * height], expected)
    path.write_bytes(whole)
    assert np.isfinite(split.hidden_states[:]).all()


def test_readers_in_threads_get_the_same_numbers(
    copied: Callable[..., Any], local: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (local() / CHUNK.format(0)).stat().st_size
    monkeypatch.setenv("FUSIONKIT_CACHE", str(4 * size))
    states = open_store(copied(local()))["train"].hidden_states
    expected = open_store(local())["train"].hidden_states[:]

    def read(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        rows = [rng.integers(0, len(expected), 6) for _ in range(5)]
        return all(np.array_equal(states[chosen], expected[chosen]) for chosen in rows)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [True] * 4


def test_a_limit_that_is_none_is_refused(
    copied: Callable[..., Any], local: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIONKIT_CACHE", "plenty")
    opened = open_store(copied(local()))
    with pytest.raises(UsageError, match="FUSIONKIT_CACHE is no size") as caught:
        _ = opened["train"]
    assert (caught.value.expected, caught.value.received) == ("like 50GB, or 0", "plenty")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("spec", [{}, {"compress": "zstd"}], ids=str)
def test_a_forked_child_reads_on_with_connections_of_its_own(
    copied: Callable[..., Any], local: Stores, spec: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a DataLoader's workers do, after their parent has read something; the parent reads on, too."""
    train, expected = open_store(copied(local(**spec)))["train"], open_store(local(**spec))["train"].hidden_states[:]
    np.testing.assert_array_equal(train.hidden_states[:3], expected[:3])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(300)  # one that hangs ends
        status = 1
        try:
            status = 0 if np.array_equal(train.hidden_states[:], expected) and len(train.row_offsets) > 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    monkeypatch.setenv("FUSIONKIT_STORAGE_TRIES", "1")  # an answer that the child has cut off is an error
    np.testing.assert_array_equal(train.hidden_states[:], expected)
    np.testing.assert_array_equal(open_store(copied(local(**spec)))["train"].hidden_states[:3], expected[:3])
