"""A sweep's units on the workers of a cluster; each worker does one unit at a time."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

from distributed import Future, KilledWorker

from fusionkit.cluster.fit_job import FitJob, do_unit_here
from fusionkit.cluster.local import devices
from fusionkit.cluster.protocol import Cluster, workers_text
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.cluster.submitted import SubmittedTasks
from fusionkit.cluster.task_map import WorkerGrace
from fusionkit.errors import StoreError, first_line
from fusionkit.fit.executor.context import Opening
from fusionkit.fit.executor.unit_job import Event, OnEvent
from fusionkit.fit.executor.worker_pool import Executor
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec, parse_bytes

SHARED_SECONDS = 60.0  # a shared file system may take so long to show what another machine has written


class ClusterExecutorFactory:
    """Makes executors for :func:`fusionkit.fit.fit`.

    Args:
        note: called with the number of workers. device: where each worker trains; ``auto`` is its GPU if it has one.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        note: Callable[[str], None] = lambda _: None,
        device: str = "auto",
        threads: int = 1,
    ) -> None:
        self.cluster, self.settings, self.note, self.device, self.threads = cluster, settings, note, device, threads

    @property
    def workers(self) -> int:
        return self.cluster.workers

    @property
    def sharers(self) -> int:
        """All workers where they may be on the CPUs of one machine; one where each has a job or a GPU of its own."""
        on_cpus = self.device == "cpu" or self.settings.gpus == 0 or not devices()
        return self.workers if on_cpus and self.settings.kind != "slurm" else 1

    @property
    def memory(self) -> int | None:
        """Bytes of a worker's job; None where the settings name no memory."""
        return None if self.settings.memory is None else parse_bytes(self.settings.memory)

    def executor(self, opening: Opening, runs: RunsFolder, on_event: OnEvent) -> Executor:
        return ClusterExecutor(self, {**opening, "device": self.device}, runs, on_event)


class ClusterExecutor:
    """See :class:`fusionkit.fit.executor.worker_pool.Executor`."""

    def __init__(self, made_by: ClusterExecutorFactory, opening: Opening, runs: RunsFolder, on_event: OnEvent) -> None:
        cluster, settings = made_by.cluster, made_by.settings
        self._cluster, self._runs, self._on_event, self._note = cluster, runs, on_event, made_by.note
        self._patience = WorkerGrace(cluster, settings.start_timeout)
        name = f"fit-{uuid.uuid4().hex}"
        self._job = FitJob(name, opening, str(runs.path.resolve()), made_by.threads)
        self._units: SubmittedTasks[tuple[str, tuple[RunSpec, ...]]] = SubmittedTasks(cluster.client)
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._kept: set[str] = set()  # runs whose records were seen here; another process may remove one to retry it
        cluster.client.subscribe_topic(name, self._receive)  # type: ignore[no-untyped-call]

    @property
    def free(self) -> bool:
        return len(self._units) < max(self._cluster.workers, self._cluster.count.up)

    def give(self, specs: Sequence[RunSpec]) -> None:
        self._submit(uuid.uuid4().hex, tuple(specs))

    def wait(self, seconds: float) -> None:
        ended = self._units.ended(seconds)
        while not self._events.empty():
            self._pass_on(Event(**self._events.get()))
        for (unit, specs), future in ended:
            self._end(unit, specs, future)
        self._cluster.heal()
        self._note(workers_text(self._cluster))
        self._patience.refuse_silence()

    def close(self) -> None:
        client = self._cluster.client
        if client.status == "running":
            client.unsubscribe_topic(self._job.name)  # type: ignore[no-untyped-call]
        self._units.cancel()

    def _submit(self, unit: str, specs: tuple[RunSpec, ...]) -> None:
        values = [spec.to_dict() for spec in specs]
        self._units.submit((unit, specs), do_unit_here, self._job, unit, values)

    def _receive(self, event: tuple[float, dict[str, Any]]) -> None:
        """An event of the job; called in Dask's own thread."""
        self._events.put(event[1]["event"])
        self._units.wake()

    def _end(self, unit: str, specs: tuple[RunSpec, ...], future: Future[Any]) -> None:
        try:
            for values in future.result():
                self._pass_on(Event(**values))
        except CancelledError:  # the scheduler forgot the task
            self._submit(unit, specs)
        except KilledWorker as error:
            self._on_event(Event("lost", tuple(spec.digest for spec in specs), text=first_line(error)))
        finally:
            future.release()  # type: ignore[no-untyped-call]

    def _pass_on(self, event: Event) -> None:
        if event.kind in ("run", "there"):
            for digest in event.runs:
                self._await(digest)
        self._on_event(event)

    def _await(self, digest: str) -> None:
        """Wait until the record of a run is seen here too; StoreError if it never is."""
        until = time.monotonic() + SHARED_SECONDS
        while digest not in self._kept and not self._runs.has(digest):
            if time.monotonic() > until:
                raise StoreError(
                    f"a worker has kept the run {digest}, and it is not in {self._runs.path}",
                    expected="a folder that all machines see",
                    received=f"none of it here after {SHARED_SECONDS:g} seconds",
                    remedy="choose a shared folder for --out",
                )
            time.sleep(0.05)
        self._kept.add(digest)
