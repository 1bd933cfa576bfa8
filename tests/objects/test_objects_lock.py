"""One encoder a store on S3: a lease that names its holder, is renewed, and does not outlive it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from botocore.exceptions import FlexibleChecksumError

from fusionkit.encode import lock
from fusionkit.errors import FusionkitError, StoreError, UsageError
from fusionkit.store import is_complete
from fusionkit.store.verify import small_files

Encoding = Callable[..., Any]
Same = Callable[..., None]


@pytest.fixture
def lease(bucket: Any) -> Callable[[], dict[str, Any] | None]:
    """The lease of the bucket's store as it lies there, None where there is none."""

    def read() -> dict[str, Any] | None:
        path = bucket / ".s.lock"
        for _ in range(1000):  # rclone writes objects in place: one that is read meanwhile may be half old, half new
            try:
                return dict(json.loads(path.read_bytes())) if path.exists() else None
            except (FlexibleChecksumError, ClientPayloadError, FileNotFoundError, json.JSONDecodeError):
                threading.Event().wait(0.01)
        raise AssertionError("the lease is never whole")

    return read


@pytest.fixture(scope="session")
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_a_store_is_leased_as_long_as_it_is_encoded(bucket: Any, encoded: Encoding, lease: Callable[[], Any]) -> None:
    refused: list[str] = []
    myself = f"process {os.getpid()} on {socket.gethostname()}"

    def second(*of: object) -> list[object]:
        assert lease()["holder"] == myself
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"another process encodes into s3://.*/s") as caught:
                encoded(bucket / "s", rows="mean", overwrite=overwrite)
            refused.append(str(caught.value.received))
        assert lease()["holder"] == myself
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encoded(bucket / "s", rows="mean", run_parts=second)
    assert refused == [myself, myself]
    assert lease() is None
    assert encoded(bucket / "s", rows="mean").outcome == "resumed"
    assert lease() is None


# What a lease of this process would be but for these fields, and whether it keeps another encoder out.
LEASES: dict[str, tuple[dict[str, Any], bool]] = {
    "of another machine": ({"machine": "elsewhere"}, True),
    "of another machine, run out": ({"machine": "elsewhere", "until": 1e9}, False),
    "of a running process": ({"pid": os.getppid()}, True),
    "of a running process, run out": ({"pid": os.getppid(), "until": 1e9}, False),
    "of a process that has ended": ({"pid": "dead"}, False),
    "of such a process of a container here": ({"pid": "dead", "machine": "elsewhere"}, True),
    "without a time": ({"until": None}, False),
}


@pytest.mark.parametrize("kind", LEASES)
def test_a_lease_counts_until_it_has_run_out_or_its_process_has_ended(
    bucket: Any, encoded: Encoding, lease: Callable[[], Any], assert_same: Same, dead: int, kind: str
) -> None:
    fields, counts = LEASES[kind]
    with lock.only_encoder(bucket / "s"):
        left = {**lease(), **fields, "holder": "somebody", "token": "theirs"}
    if left["pid"] == "dead":
        left["pid"] = dead
    (bucket / ".s.lock").write_bytes(json.dumps(left).encode())
    if counts:
        with pytest.raises(UsageError, match="another process encodes into") as caught:
            encoded(bucket / "s", rows="mean")
        assert caught.value.received == "somebody"
        assert lease() == left
        assert not (bucket / "s" / "plan.json").exists()
    else:
        assert encoded(bucket / "s", rows="mean").outcome == "encoded"
        assert_same(bucket.folder / "s", rows="mean")


def test_a_lease_that_is_damaged_does_not_count(bucket: Any, encoded: Encoding, assert_same: Same) -> None:
    (bucket / ".s.lock").write_bytes(b"{")
    assert encoded(bucket / "s", rows="mean").outcome == "encoded"
    assert_same(bucket.folder / "s", rows="mean")


def test_of_two_that_find_the_same_ended_lease_only_one_has_it(
    bucket: Any, lease: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has seen that it has ended before the first writes its own, and writes after the first."""
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 1.0)
    path = bucket / ".s.lock"
    path.write_bytes(json.dumps({"until": 0.0}).encode())
    first, second = (lock._Lease(path, bucket / "s") for _ in range(2))
    write, taking = second._write, list[Future[None]]()
    with ThreadPoolExecutor(1) as pool:

        def after_the_first(*given: Any) -> None:
            taking.append(pool.submit(first.acquire))
            while (lease() or {}).get("token") != first._token:
                threading.Event().wait(0.01)
            write(*given)

        monkeypatch.setattr(second, "_write", after_the_first)
        second.acquire()
        with pytest.raises(lock.HeldError, match="another process encodes into"):
            taking[0].result()
    assert lease()["token"] == second._token


def test_a_lease_is_renewed(bucket: Any, lease: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.01)
    with lock.only_encoder(bucket / "s") as held:
        first = lease()
        for _ in range(10_000):
            if lease() != first:
                break
            threading.Event().wait(0.01)
        later = lease()
        held()
    assert later["until"] > first["until"] > time.time() + 60
    assert {**later, "until": 0} == {**first, "until": 0}
    assert lease() is None


def test_an_encoder_whose_lease_was_taken_over_stops(
    bucket: Any, encoded: Encoding, lease: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept for longer than the lease must not write into what is another's by then."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.0)
    asked = iter(range(100))
    written: list[str] = []

    def stop() -> bool:
        if next(asked) == 3:
            written.extend(path.name for path in (bucket.folder / "s" / "parts").iterdir())
            theirs = {**lease(), "holder": "somebody", "token": "theirs", "until": time.time() + 100}
            while lease()["holder"] != "somebody":  # a writer's thread may just be renewing its own
                (bucket / ".s.lock").write_bytes(json.dumps(theirs).encode())
                time.sleep(0.2)
        return False

    with pytest.raises(StoreError, match="another process has taken over") as caught:
        encoded(bucket / "s", stop=stop)
    assert caught.value.received == "somebody"
    assert lease()["holder"] == "somebody"
    assert not is_complete(bucket / "s")
    # What was under way comes to its end, nothing else is begun.
    assert len(list((bucket.folder / "s" / "parts").iterdir())) <= len(written) + 4


def test_a_plan_is_not_put_in_place_once_the_lease_is_another_s(
    bucket: Any, encoded: Encoding, lease: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may sleep while it tokenises, and another process may have begun the store meanwhile."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.0)

    def taken_over_when_the_draft_is_ready(*given: Any) -> Any:
        theirs = {**lease(), "holder": "somebody", "token": "theirs", "until": time.time() + 100}
        (bucket / ".s.lock").write_bytes(json.dumps(theirs).encode())
        return small_files(*given)

    monkeypatch.setattr("fusionkit.encode.plan.small_files", taken_over_when_the_draft_is_ready)
    with pytest.raises(StoreError, match="another process has taken over"):
        encoded(bucket / "s")
    assert not (bucket / "s").exists()


def test_what_stopped_the_work_is_told_also_where_the_lease_cannot_be_given_back(
    doomed: Any, encoded: Encoding
) -> None:
    def fail(*of: object) -> list[object]:
        doomed.stop()
        raise FusionkitError("the work failed")

    with pytest.raises(FusionkitError, match="the work failed"):
        encoded(doomed.begun, run_parts=fail)


@pytest.mark.soak("kills")
def test_the_lease_of_a_killed_process_is_taken_over_at_once(
    bucket: Any, place: Path, model: Path, fusionkit: Callable[..., Any], encoded: Encoding, assert_same: Same
) -> None:
    command = ["encode", place, "--encoder", model, "--device", "cpu", "--out", bucket / "s"]
    stopped = fusionkit(*command, moment="PutObject s/parts/train-00002.json", end=signal.SIGSTOP).code
    refused = fusionkit(*command)
    assert refused.code == 2
    assert f"fusionkit: another process encodes into s3://{bucket.name}/s\n" in refused.err
    assert f"  received: process {stopped} on {socket.gethostname()}\n" in refused.err
    assert "  remedy:   wait for it" in refused.err
    assert "Traceback" not in refused.err
    os.kill(stopped, signal.SIGKILL)
    while Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
        threading.Event().wait(0.01)
    assert encoded(bucket / "s").outcome == "resumed"
    assert_same(bucket.folder / "s")
