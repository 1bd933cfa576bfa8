"""Events of worker processes as their parent receives them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fit import RunsFolder
from fusionkit.fit.executor import worker_pool
from fusionkit.fit.executor.unit_job import Event
from fusionkit.fit.executor.worker import failure
from fusionkit.fit.executor.worker_pool import WorkerError, WorkerPool, raised
from fusionkit.machine.child_processes import ChildProcess
from fusionkit.specs import RunSpec

SPEC = RunSpec(store="s", task="tagging", label="tags", fusion="last", head="tagger")
# In place of training, which is not at stake here: the same events over the same socket.
WORKER = """
def main(channel):
    channel.receive()
    channel.send({"kind": "ready"})
    for _ in channel.receive():
        channel.send({"kind": "note", "runs": [], "count": 0, "work": 0.0, "text": "one"})
        channel.send({"kind": "note", "runs": [], "count": 0, "work": 0.0, "text": "two"})
    channel.receive()
"""


class Received:
    """Keeps events; fails at the first as a full disk does, if asked to."""

    def __init__(self, fails: bool) -> None:
        self.events: list[Event] = []
        self._fails = fails

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``begun(on_event)``: one worker, given one run."""
    (tmp_path / "scripted_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    started: list[ChildProcess] = []

    def start(_: str, environment: dict[str, str]) -> ChildProcess:
        started.append(ChildProcess("scripted_worker", environment))
        return started[-1]

    monkeypatch.setattr(worker_pool, "ChildProcess", start)
    opened: list[WorkerPool] = []

    def begin(on_event: Received) -> tuple[WorkerPool, ChildProcess]:
        opened.append(WorkerPool(1, {}, RunsFolder(tmp_path / "runs"), on_event))
        opened[-1].give([SPEC])
        return opened[-1], started[-1]

    yield begin
    for workers in opened:
        workers.close()


def wait_for(workers: WorkerPool, received: Received, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(received.events) < count:
        assert time.monotonic() < deadline, "it said nothing"
        workers.wait(0.5)


def test_an_error_of_the_parents_own_is_not_taken_for_its_workers_death(begun: Any) -> None:
    received = Received(fails=True)
    workers, child = begun(received)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        wait_for(workers, received, 1)
    assert [(event.kind, event.text) for event in received.events] == [("note", "one")]  # and nothing of a lost run
    assert child.process.poll() is None


def test_the_events_before_a_workers_death_are_received_before_it(begun: Any) -> None:
    received = Received(fails=False)
    workers, child = begun(received)
    wait_for(workers, received, 2)
    child.process.kill()
    wait_for(workers, received, 3)
    assert [(event.kind, event.runs) for event in received.events] == [
        ("note", []),
        ("note", []),
        ("lost", (SPEC.digest,)),
    ]
    assert received.events[2].text == "the process that trained it ended: SIGKILL"
    assert workers.free


def test_what_the_system_refuses_a_worker_is_no_bug_of_fusionkit() -> None:
    full = raised(failure(OSError(errno.ENOSPC, "No space left on device", "/runs/a")))
    assert isinstance(full, FusionkitError)
    assert (full.what, full.exit_code) == ("cannot use /runs/a", 1)
    closed = raised(failure(PermissionError(errno.EACCES, "Permission denied", "/runs/a")))
    assert isinstance(closed, UsageError)
    bug = raised(failure(ValueError("of our own")))
    assert isinstance(bug, WorkerError)
    assert "ValueError: of our own" in str(bug)
