"""Worker processes as their parent hears them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit.child_processes import ChildProcess
from fusionkit.fit import RunsFolder
from fusionkit.fit.executor import worker_pool
from fusionkit.fit.executor.context import ContextOpener
from fusionkit.fit.executor.unit_job import Event
from fusionkit.fit.executor.worker_pool import WorkerPool
from fusionkit.specs import RunSpec

SPEC = RunSpec(store="s", task="tagging", label="tags", fusion="last", head="tagger")
# In place of training, which is not at stake here: the same words over the same socket.
SPEAKING = """
def main(channel):
    channel.receive()
    channel.send({"kind": "ready"})
    for _ in channel.receive():
        channel.send({"kind": "note", "runs": [], "count": 0, "work": 0.0, "text": "one"})
        channel.send({"kind": "note", "runs": [], "count": 0, "work": 0.0, "text": "two"})
    channel.receive()
"""


class Heard:
    """Keeps words; fails at the first as a full disk does."""

    def __init__(self, fails: bool) -> None:
        self.words: list[Event] = []
        self._fails = fails

    def __call__(self, word: Event) -> None:
        self.words.append(word)
        if self._fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``begun(hear)``: one worker, given one run."""
    (tmp_path / "speaking.py").write_text(SPEAKING)
    monkeypatch.syspath_prepend(tmp_path)
    started: list[ChildProcess] = []

    def start(_: str, environment: dict[str, str]) -> ChildProcess:
        started.append(ChildProcess("speaking", environment))
        return started[-1]

    monkeypatch.setattr(worker_pool, "ChildProcess", start)
    opened: list[WorkerPool] = []

    def begin(hear: Heard) -> tuple[WorkerPool, ChildProcess]:
        opened.append(
            WorkerPool(1, ContextOpener((("nowhere", None),), (), (), {}), RunsFolder(tmp_path / "runs"), hear)
        )
        opened[-1].give([SPEC])
        return opened[-1], started[-1]

    yield begin
    for workers in opened:
        workers.close()


def wait_for(workers: WorkerPool, heard: Heard, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(heard.words) < count:
        assert time.monotonic() < deadline, "it said nothing"
        workers.wait(0.5)


def test_an_error_of_the_parents_own_is_not_taken_for_its_workers_death(begun: Any) -> None:
    heard = Heard(fails=True)
    workers, child = begun(heard)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        wait_for(workers, heard, 1)
    assert [(word.kind, word.text) for word in heard.words] == [("note", "one")]  # and nothing of a lost run
    assert child.process.poll() is None


def test_what_a_worker_said_before_it_died_is_heard_before_its_death(begun: Any) -> None:
    heard = Heard(fails=False)
    workers, child = begun(heard)
    wait_for(workers, heard, 2)
    child.process.kill()
    wait_for(workers, heard, 3)
    assert [(word.kind, word.runs) for word in heard.words] == [("note", ()), ("note", ()), ("lost", (SPEC.digest,))]
    assert heard.words[2].text == "the process that trained it ended: SIGKILL"
    assert workers.free
