"""Shares of the parts: disjoint, side by side, committed by whoever is last, and the bytes of one encode."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from fusionkit.encode import EncodeReport
from fusionkit.encode.job import make_job
from fusionkit.encode.lock import HeldError, only_encoder
from fusionkit.encode.part_records import all_parts, finished_parts
from fusionkit.encode.shard import Shard, encode_shard, parse_shard
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, UsageError
from fusionkit.sources import Source, examples, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import is_complete, layout
from fusionkit.store.manifest import read_plan

Same = Callable[..., None]
Sharing = Callable[..., EncodeReport]


@pytest.fixture
def shared(source: Source, encoder: Encoder, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Sharing:
    """``encode_shard`` of the source into a place."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", chunk_bytes)

    def run(out: Path, index: int, count: int, stop: Callable[[], bool] = lambda: False) -> EncodeReport:
        job = make_job(source, guess_columns(source), out, EncodeSpec(), encoder, None, None)
        return encode_shard(job, Shard(index, count), stop)

    return run


def done_in(out: Path) -> set[int]:
    plan = read_plan(out)
    parts = all_parts(plan)
    return {parts.index(part) for part in finished_parts(out, plan)}


@pytest.mark.parametrize("count", [1, 3, 7])
def test_shares_in_any_order_make_the_store_of_one_encode(
    shared: Sharing, assert_same: Same, tmp_path: Path, count: int
) -> None:
    seen: set[int] = set()
    for index in range(count, 0, -1):
        assert not is_complete(tmp_path / "s")
        report = shared(tmp_path / "s", index, count)
        if index > 1:
            assert report.outcome == "share"
            now = done_in(tmp_path / "s")
            assert seen <= now, "a share did away with what another had done"
            assert len(now) > len(seen)
            seen = now
    assert report.outcome == ("encoded" if count == 1 else "resumed")
    assert_same(tmp_path / "s")
    assert shared(tmp_path / "s", 1, count).outcome == "complete"


def test_a_share_of_none_plans_and_later_commits(shared: Sharing, assert_same: Same, tmp_path: Path) -> None:
    assert shared(tmp_path / "s", 0, 2).outcome == "share"
    assert done_in(tmp_path / "s") == set()
    assert shared(tmp_path / "s", 1, 2).outcome == "share"
    with only_encoder(tmp_path / "s", "1-of-2"):
        # Somebody is still at a share: what it writes must not be cleared away.
        leftover = tmp_path / "s" / ".of-another.partial"
        leftover.touch()
        assert shared(tmp_path / "s", 0, 2).outcome == "share"
        assert leftover.exists()
    assert shared(tmp_path / "s", 2, 2).outcome == "resumed"
    assert_same(tmp_path / "s")


def test_shares_side_by_side_make_the_store_of_one_encode(shared: Sharing, assert_same: Same, tmp_path: Path) -> None:
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda at=at: outcomes.append(shared(tmp_path / "s", at, 4).outcome))
        for at in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert set(outcomes) - {"share"}, "nobody committed"
    assert_same(tmp_path / "s")


def test_a_share_is_one_process_and_keeps_a_whole_encode_away(
    shared: Sharing, encoded: Callable[..., EncodeReport], assert_same: Same, tmp_path: Path
) -> None:
    shared(tmp_path / "s", 1, 3)
    with only_encoder(tmp_path / "s", "2-of-3"):
        with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
            shared(tmp_path / "s", 2, 3)
        with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
            encoded(tmp_path / "s")
    # One whose process was killed holds nothing, and an encode of the whole finishes what shares began.
    (tmp_path / ".s.share-2-of-3.lock").write_text("process 1 on another machine")
    assert encoded(tmp_path / "s").outcome == "resumed"
    assert_same(tmp_path / "s")


def test_shares_of_another_number_are_refused_while_one_is_at_work(
    shared: Sharing, assert_same: Same, tmp_path: Path
) -> None:
    """They are other cuts of the same parts."""
    shared(tmp_path / "s", 1, 3)
    with only_encoder(tmp_path / "s", "2-of-3"), pytest.raises(HeldError, match="encodes the share 2/3") as caught:
        shared(tmp_path / "s", 2, 2)
    assert "shares of 2 alone" in str(caught.value.expected)
    assert shared(tmp_path / "s", 1, 2).outcome == "share"
    assert shared(tmp_path / "s", 2, 2).outcome == "resumed"
    assert_same(tmp_path / "s")


def test_a_share_that_is_stopped_goes_on(shared: Sharing, assert_same: Same, tmp_path: Path) -> None:
    asked = iter([False, False, True])
    with pytest.raises(StoppedError, match="parts of"):
        shared(tmp_path / "s", 1, 1, lambda: next(asked, True))
    before = done_in(tmp_path / "s")
    assert before
    shared(tmp_path / "s", 1, 1)
    assert_same(tmp_path / "s")


def test_a_share_that_is_stopped_while_it_plans_keeps_nothing(
    shared: Sharing, assert_same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "PIECE_EXAMPLES", 10)
    with pytest.raises(StoppedError, match="before the plan"):
        shared(tmp_path / "s", 0, 2, lambda: True)
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / ".s.planning").exists()
    assert shared(tmp_path / "s", 1, 1).outcome == "encoded"
    assert_same(tmp_path / "s")


def test_a_share_that_waits_for_the_lock_can_be_stopped(shared: Sharing, tmp_path: Path) -> None:
    with only_encoder(tmp_path / "s"), pytest.raises(StoppedError, match="another process"):
        shared(tmp_path / "s", 1, 2, lambda: True)


def test_a_share_of_a_finished_store_needs_no_lock(
    shared: Sharing, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.encode.lock.try_lock", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    assert shared(whole, 1, 2).outcome == "complete"


@pytest.mark.parametrize("text", ["", "3", "4/3", "-1/3", "1/0", "0/0", "a/b", "1/3/5", "1 / 3"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="I/N"):
        parse_shard(text)
    assert parse_shard("3/16") == Shard(3, 16)
    assert parse_shard("0/1") == Shard(0, 1)


def test_of_more_shares_than_parts_some_have_nothing_to_do(shared: Sharing, assert_same: Same, tmp_path: Path) -> None:
    outcomes = [shared(tmp_path / "s", at, 40).outcome for at in range(1, 41)]
    assert outcomes == ["share"] * 39 + ["resumed"]
    assert_same(tmp_path / "s")
