"""Dask's configuration and TLS, and starting a scheduler in this process."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, Scheduler, Security, SpecCluster

from fusionkit.cluster.settings import ClusterSettings
from fusionkit.errors import FusionkitError, first_line

CONFIGURATION: dict[str, Any] = {
    # Workers die because their machines are taken away: the task that they had is not at fault.
    "distributed.scheduler.allowed-failures": 20,
    # A worker counts as alive while its process lives: one that computes may hold the interpreter for minutes.
    "distributed.scheduler.worker-ttl": None,
    # A process of this machine may be slow to start: its imports take long while the machine is busy.
    "distributed.deploy.lost-worker-timeout": "60s",
    # Tasks return small records, so nothing is to be spilled. No worker is to be ended for its encoder's memory.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # Data that is kept for a dashboard, which nobody has open.
    "distributed.diagnostics.computations.max-history": 1,
    "distributed.admin.low-level-log-length": 100,
    "distributed.worker.profile.enabled": False,
    # No web pages with facts about a scheduler and its workers.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # At lower levels, closing a cluster logs each connection that it gives up.
    "logging.distributed": "critical",
}
START_SECONDS = 60.0  # for a scheduler and the connection to it; workers may come later


@contextmanager
def started(settings: ClusterSettings, workers: dict[int, Any]) -> Iterator[tuple[SpecCluster, Client]]:
    """A scheduler in this process and a connection to it; both end with the block.

    Args:
        workers: what :class:`~distributed.SpecCluster` starts beside it.

    Raises:
        FusionkitError: the scheduler cannot listen where the settings say.
    """
    security = security_of(settings)
    with (
        # Dask imports from its folder first of all, and takes /tmp/dask-scratch-space also where it is somebody else's.
        tempfile.TemporaryDirectory(prefix="fusionkit-scratch-", ignore_cleanup_errors=True) as folder,
        dask.config.set({**CONFIGURATION, "temporary-directory": folder}),
        ExitStack() as stack,
    ):
        try:
            running = stack.enter_context(
                SpecCluster(  # type: ignore[no-untyped-call]
                    scheduler={"cls": Scheduler, "options": process_options(settings)},
                    workers=workers,
                    security=security,
                    silence_logs=logging.CRITICAL,
                )
            )
            client = stack.enter_context(
                Client(running, security=security, timeout=START_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise FusionkitError(
                f"no {'cluster' if workers else 'scheduler'} can be started on this machine",
                received=_cause(error),
                remedy="check host, interface and certificates",
            ) from error
        yield running, client


def _cause(error: BaseException) -> str:
    """The cause behind Dask's own errors, which only say that something failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error, kind=True)


def process_options(settings: ClusterSettings) -> dict[str, Any]:
    """Options of a scheduler or worker: where it listens, and the TLS options that it needs to connect.

    The plain HTTP server cannot be left out. It takes a free port and stays on loopback.
    """
    return {
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
        "security": security_of(settings),
        "protocol": "tls://" if settings.tls else "tcp://",
        **({"interface": settings.interface} if settings.interface else {"host": settings.host}),
    }


def security_of(settings: ClusterSettings) -> Security | None:
    """Dask's settings for the certificates; None without certificates."""
    files = settings.tls_files
    if not files:
        return None
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=files["tls_ca"],
        **{f"tls_{role}_cert": files["tls_cert"] for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": files["tls_key"] for role in ("client", "scheduler", "worker")},
    )
