"""Workers on this machine: one per GPU, which sees only that GPU; without GPUs, workers × threads = cores.

Each worker is a process under a nanny, which replaces it if it dies. All end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, Nanny, SpecCluster

from fusionkit.cluster.certificates import certified
from fusionkit.cluster.dask_config import process_options, started
from fusionkit.cluster.protocol import WorkerCount
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.errors import UsageError
from fusionkit.machine.huge_pages import with_huge_pages
from fusionkit.machine.resources import cores
from fusionkit.plural import counted

SAFE_PATH = "PYTHONSAFEPATH"


class LocalCluster:
    """See :class:`fusionkit.cluster.protocol.Cluster`."""

    def __init__(self, started: SpecCluster, client: Client, workers: int) -> None:
        self.client, self.count, self.workers = client, WorkerCount(client), workers
        self._started = started
        self.count.look()

    def heal(self) -> None:
        """Nannies restart their workers; a nanny that did not do so in time is replaced by one with the same
        options.
        """
        if self.count.look() and self.count.up < self.workers and len(self._started.workers) < self.workers:
            self._started.scale(self.workers)  # type: ignore[no-untyped-call]

    def explain(self) -> str | None:
        return "no worker process of this machine stays alive"

    def kill(self) -> None:
        """Kill all workers at once: finished work is kept already, the rest is given up."""
        for nanny in self._started.workers.values():
            nanny.auto_restart = False
            if nanny.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(nanny.pid, signal.SIGKILL)


@contextmanager
def open_local(settings: ClusterSettings) -> Iterator[LocalCluster]:
    """Start a scheduler in this process, and its workers.

    Raises:
        UsageError: more workers than GPUs. FusionkitError: the scheduler cannot listen where the settings say.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fusionkit-workers-") as folder,
        certified(settings, Path(folder)) as settings,
    ):
        of_worker = {
            **process_options(settings),
            "silence_logs": logging.CRITICAL,
            "preload": "fusionkit.cluster.preload",
            "nthreads": 1,
            "memory_limit": 0,
        }
        workers = {
            number: {"cls": Nanny, "options": {**of_worker, "env": environment}}
            for number, environment in enumerate(environments_of(settings, devices()))
        }
        with _of_new_processes(), started(settings, workers) as (running, client):
            cluster = LocalCluster(running, client, len(workers))
            try:
                yield cluster
            finally:
                cluster.kill()  # there is no need to wait until they end by themselves


@contextmanager
def _of_new_processes() -> Iterator[None]:
    """Let processes that start in the block not look into the working folder first, as with ``python -P``, and have
    huge pages. Workers then get this process's own path.

    Dask's setting ``pre-spawn-environ`` comes too late for the resource tracker, which multiprocessing starts first.
    """
    wanted = {SAFE_PATH: "1", **with_huge_pages()}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def environments_of(settings: ClusterSettings, found: list[str]) -> list[dict[str, str]]:
    """The environment variables of each worker.

    Args:
        found: the GPUs that this process may use, as CUDA names them.

    Raises:
        UsageError: more workers than GPUs, where each worker is to have one.
    """
    pinned = found if settings.gpus != 0 else []
    if (pinned or settings.gpus == 1) and (settings.workers or 1) > len(pinned):
        raise UsageError(
            "more workers than GPUs",
            expected=f"up to {counted(len(found), 'worker')}" if found else "a GPU",
            received=f"workers: {settings.workers}" if settings.workers else "gpus: 1",
            remedy="choose fewer workers, or gpus: 0 to work on CPUs",
        )
    if pinned:
        used = pinned[: settings.workers]
        each = settings.threads or max(cores() // len(used), 1)
        return [{"CUDA_VISIBLE_DEVICES": gpu, **_threads(each)} for gpu in used]
    count = settings.workers or max(cores() // (settings.threads or 1), 1)
    each = settings.threads or (max(cores() // count, 1) if settings.workers else 1)
    return [{"CUDA_VISIBLE_DEVICES": "", **_threads(each)} for _ in range(count)]


def _threads(count: int) -> dict[str, str]:
    """Thread counts for libraries that read them when they are loaded; tasks set torch's own count."""
    return {**{f"{name}_NUM_THREADS": str(count) for name in ("OMP", "MKL")}, "TOKENIZERS_PARALLELISM": "false"}


def devices() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    import torch

    count = torch.cuda.device_count()  # of those that the variable names, up to the first that is none
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if visible is None else map(str.strip, visible.split(","))
    return list(names)[:count]
