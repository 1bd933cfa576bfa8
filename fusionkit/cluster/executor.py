"""Who does a sweep's units: the workers of a cluster, one unit each at a time."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from distributed import Future, KilledWorker

from fusionkit.cluster.fit_job import FitJob, do_unit_here
from fusionkit.cluster.protocol import Cluster, submit
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.task_map import WorkerGrace
from fusionkit.errors import StoreError
from fusionkit.fit.executor.context import Opening
from fusionkit.fit.executor.unit_job import Event, OnEvent
from fusionkit.fit.executor.worker_pool import Executor
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

SHARED_SECONDS = 60.0  # that a shared file system may take to show here what another machine has written


class ClusterExecutorFactory:
    """Makes executors for :func:`fusionkit.fit.fit`.

    Args:
        note: told how many workers there are.
    """

    def __init__(
        self, cluster: Cluster, settings: ClusterSettings, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._cluster, self._settings, self._note = cluster, settings, note

    @property
    def workers(self) -> int:
        """How many units are done at once."""
        return self._cluster.workers

    def executor(self, opening: Opening, runs: RunsFolder, on_event: OnEvent) -> Executor:
        """One that is free as long as a worker is."""
        return ClusterExecutor(self._cluster, self._settings, opening, runs, on_event, self._note)


@dataclass(frozen=True, eq=False)
class _SubmittedUnit:
    unit: str
    specs: tuple[RunSpec, ...]
    future: Future[Any]


class ClusterExecutor:
    """See :class:`fusionkit.fit.executor.worker_pool.Executor`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        opening: Opening,
        runs: RunsFolder,
        on_event: OnEvent,
        note: Callable[[str], None],
    ) -> None:
        self._cluster, self._runs, self._on_event, self._note = cluster, runs, on_event, note
        self._patience = WorkerGrace(cluster, settings.start_timeout)
        name = f"fit-{uuid.uuid4().hex}"
        self._job = FitJob(name, opening, str(runs.path.resolve()), settings.threads or 1)
        self._flying: dict[str, _SubmittedUnit] = {}
        self._reports: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        cluster.client.subscribe_topic(  # type: ignore[no-untyped-call]
            name, lambda event: self._reports.put(("", event[1]["event"]))
        )

    @property
    def free(self) -> bool:
        return len(self._flying) < max(self._cluster.workers, self._cluster.up)

    def give(self, specs: Sequence[RunSpec]) -> None:
        self._submit(uuid.uuid4().hex, tuple(specs))

    def _submit(self, unit: str, specs: tuple[RunSpec, ...]) -> None:
        name = f"unit-{unit}-{uuid.uuid4().hex[:8]}"
        values = [spec.to_dict() for spec in specs]
        future = submit(self._cluster.client, do_unit_here, self._job, unit, values, key=name)
        self._flying[name] = _SubmittedUnit(unit, specs, future)
        future.add_done_callback(lambda _: self._reports.put((name, None)))  # type: ignore[no-untyped-call]

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            self._handle(*self._reports.get(timeout=seconds))
            while time.monotonic() < until:
                self._handle(*self._reports.get_nowait())
        except queue.Empty:
            pass
        cluster = self._cluster
        cluster.heal()
        self._note(f"{cluster.up} of {cluster.workers} workers" + (f", {cluster.lost} lost" if cluster.lost else ""))
        self._patience.refuse_silence()

    def close(self) -> None:
        client = self._cluster.client
        if client.status == "running":
            client.unsubscribe_topic(self._job.name)  # type: ignore[no-untyped-call]
            if self._flying:
                client.cancel(  # type: ignore[no-untyped-call]
                    [given.future for given in self._flying.values()], force=True
                )
        self._flying.clear()

    def _handle(self, name: str, event: Any) -> None:
        if event is not None:
            self._pass_on(Event(**event))
            return
        if (given := self._flying.pop(name, None)) is None:
            return
        try:
            for values in given.future.result():
                self._pass_on(Event(**values))
        except CancelledError:  # the scheduler forgot it
            self._submit(given.unit, given.specs)
        except KilledWorker as error:
            self._on_event(Event("lost", tuple(spec.digest for spec in given.specs), text=str(error).splitlines()[0]))
        finally:
            given.future.release()  # type: ignore[no-untyped-call]

    def _pass_on(self, event: Event) -> None:
        if event.kind in ("run", "there"):
            for digest in event.runs:
                self._await(digest)
        self._on_event(event)

    def _await(self, digest: str) -> None:
        """Until the record of a run is seen here, too."""
        until = time.monotonic() + SHARED_SECONDS
        while not self._runs.has(digest):
            if time.monotonic() > until:
                raise StoreError(
                    f"a worker has kept the run {digest}, and it is not in {self._runs.path}",
                    expected="a folder that all machines see",
                    received=f"none of it here after {SHARED_SECONDS:g} seconds",
                    remedy="choose a shared folder for --out",
                )
            time.sleep(0.05)
