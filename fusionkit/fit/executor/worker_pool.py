"""Executors of a sweep's units: this process, or worker processes, one per core.

Heads are small: two threads on one head gain little, and lose much as soon as anything else runs. So each core gets
its own single-threaded process with its own units. A worker that dies is replaced, and its unit is reported as lost.
These workers are not Dask's (``--cluster local``): for 96 few-shot runs over SST-2 with 2 workers, Dask's took 64 to 70
CPU seconds and these take 47 to 50.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fit.executor.context import Opening, SweepContext
from fusionkit.fit.executor.unit_job import Event, OnEvent, do_unit
from fusionkit.io.locks import this_process
from fusionkit.machine.child_processes import ChildProcess
from fusionkit.machine.huge_pages import with_huge_pages
from fusionkit.runs.claims import Claims
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

FAILED_STARTS = 3  # after so many workers in a row ended before they were ready: a fourth would end too
# Set before torch is imported: a thread pool that is never used costs memory and slows a worker's start.
ENVIRONMENT = {"OMP_NUM_THREADS": "{threads}", "MKL_NUM_THREADS": "{threads}", "TOKENIZERS_PARALLELISM": "false"}


class Executor(Protocol):
    """Does units, and reports the outcome."""

    @property
    def free(self) -> bool:
        """Whether a unit can be given."""

    def give(self, specs: Sequence[RunSpec]) -> None:
        """Begin a unit."""

    def wait(self, seconds: float) -> None:
        """Pass on events, waiting up to ``seconds`` for the first."""

    def close(self) -> None:
        """End all work at once."""


class ExecutorFactory(Protocol):
    """Makes executors outside this machine, like the workers of a cluster."""

    @property
    def workers(self) -> int:
        """The number of units that an executor does at once."""

    @property
    def sharers(self) -> int:
        """How many of its workers share one memory."""

    @property
    def memory(self) -> int | None:
        """Bytes of that memory; None if unknown."""

    def executor(self, opening: Opening, runs: RunsFolder, on_event: OnEvent) -> Executor:
        """An executor for one sweep."""


class InProcessExecutor:
    """Does units in this process, each to its end: for little work, or stores that no other process can open."""

    def __init__(self, context: SweepContext, runs: RunsFolder, on_event: OnEvent) -> None:
        self._context, self._runs, self._on_event = context, runs, on_event
        self._claims = Claims(runs.path, this_process())
        self.free = True

    def give(self, specs: Sequence[RunSpec]) -> None:
        do_unit(specs, self._context, self._runs, self._claims, self._on_event)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._claims.close()


@dataclass
class _Worker:
    child: ChildProcess
    ready: bool = False
    given: tuple[str, ...] = ()


class WorkerPool:
    """At most ``count`` worker processes with ``threads`` threads each, started when there is a unit for them."""

    def __init__(self, count: int, opening: Opening, runs: RunsFolder, on_event: OnEvent, threads: int = 1) -> None:
        self._count, self._on_event = count, on_event
        self._environment = {name: value.format(threads=threads) for name, value in ENVIRONMENT.items()}
        self._environment |= with_huge_pages()
        self._setup = {
            "opening": opening,
            "runs": str(runs.path.resolve()),
            "threads": threads,
            "holder": this_process(),
        }
        self._workers: list[_Worker] = []
        self._failed_starts = 0

    @property
    def free(self) -> bool:
        return len(self._workers) < self._count or any(not worker.given for worker in self._workers)

    def give(self, specs: Sequence[RunSpec]) -> None:
        worker = next((worker for worker in self._workers if not worker.given), None)
        if worker is None:
            worker = _Worker(ChildProcess("fusionkit.fit.executor.worker", self._environment))
            self._workers.append(worker)
            self._send(worker, self._setup)
        worker.given = tuple(spec.digest for spec in specs)
        self._send(worker, [spec.to_dict() for spec in specs])

    def wait(self, seconds: float) -> None:
        if not self._workers:
            time.sleep(seconds)
        ready = wait([worker.child.connection for worker in self._workers], seconds) if self._workers else []
        for worker in [worker for worker in self._workers if worker.child.connection in ready]:
            # Messages are handled outside _next_of: an OSError of this process, like a full disk, is no worker's death.
            while (message := self._next_of(worker)) is not None:
                self._handle(worker, message)

    def close(self) -> None:
        for worker in self._workers:
            worker.child.process.kill()  # all of them before any is waited for
        while self._workers:
            self._workers.pop().child.end()

    def _send(self, worker: _Worker, value: Any) -> None:
        with contextlib.suppress(OSError):  # it has died; that is seen when its messages are read
            worker.child.send(value)

    def _next_of(self, worker: _Worker) -> dict[str, Any] | None:
        """A worker's next message; None if there is none, or the worker has died, which removes it."""
        try:
            return worker.child.receive() if worker.child.connection.poll() else None
        except (EOFError, OSError):
            self._remove(worker)
            return None

    def _handle(self, worker: _Worker, message: dict[str, Any]) -> None:
        if message["kind"] == "ready":
            worker.ready, self._failed_starts = True, 0
        elif message["kind"] == "end":
            worker.given = ()
        elif message["kind"] == "failure":
            raise raised(message)
        else:
            self._on_event(Event(**message))

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        how = worker.child.end()  # from here on its claims are free
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                remedy = "try --workers 1, or free some memory"
                raise FusionkitError("no worker process can be started", received=how, remedy=remedy)
        if worker.given:
            kind = "lost" if worker.ready else "unstarted"
            self._on_event(Event(kind, worker.given, text=f"the process that trained it ended: {how}"))


class WorkerError(RuntimeError):
    """An error in a worker that is a bug of fusionkit; the message has the worker's traceback."""


def raised(message: dict[str, Any]) -> Exception:
    """The exception for an error that a worker reported."""
    if message["fields"] is None:
        return WorkerError(f"in a worker:\n{message['trace']}")
    kind = UsageError if message["exit_code"] == UsageError.exit_code else FusionkitError
    return kind(message["fields"].pop("what"), **message["fields"])
