"""Dask's configuration and TLS, for schedulers and workers that are started here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Security

from fusionkit.cluster.settings import ClusterSettings

CONFIGURATION: dict[str, Any] = {
    # A task is not to blame for the workers that died under it: their machines were taken away.
    "distributed.scheduler.allowed-failures": 20,
    # A worker is alive as long as its process: one that computes holds the interpreter for minutes.
    "distributed.scheduler.worker-ttl": None,
    "distributed.deploy.lost-worker-timeout": "2s",
    # Tasks return small records; nothing is to be spilled, nor a worker ended for what its encoder takes.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # What is kept for a dashboard that nobody has open.
    "distributed.diagnostics.computations.max-history": 1,
    "distributed.admin.low-level-log-length": 100,
    "distributed.worker.profile.enabled": False,
    # Pages of facts about a scheduler and its workers.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Below that, a cluster that is closed tells of each connection it gives up.
    "logging.distributed": "critical",
}
# Options of schedulers and workers: their plain HTTP servers, which cannot be left out, have no port that others could
# have and stay on loopback.
NO_PAGES = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


@contextmanager
def configured(others: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Dask as this package needs it, while a cluster is open; ``others`` win."""
    with dask.config.set({**CONFIGURATION, **(others or {})}):
        yield


def security_of(settings: ClusterSettings) -> Security | None:
    """The certificates; None without."""
    if settings.tls_ca is None or settings.tls_cert is None or settings.tls_key is None:
        return None
    authority, certificate, key = (
        str(Path(path).expanduser().resolve()) for path in (settings.tls_ca, settings.tls_cert, settings.tls_key)
    )
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=authority,
        **{f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": key for role in ("client", "scheduler", "worker")},
    )
