"""The interface of a cluster, whatever starts its workers; and counting the workers."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from distributed import Client

from fusionkit.plural import counted

LOOK_SECONDS = 1.0  # between two questions to a scheduler


class WorkerCount:
    """Counts the workers of a scheduler by their addresses, which no two workers ever share.

    Attributes:
        up: the number of workers at the last look. lost: the number that have disappeared so far.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: set[str] = set()
        self._looked = 0.0
        self.up = self.lost = 0

    def look(self) -> bool:
        """Ask the scheduler, at most once per :data:`LOOK_SECONDS`; returns whether it was asked."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        with contextlib.suppress(OSError, ValueError):  # the scheduler is gone: waiting for tasks reports it
            now = set(self._client.nthreads())  # type: ignore[no-untyped-call]
            self.lost += len(self._known - now)
            self._known, self.up = now, len(now)
        self._looked = time.monotonic()
        return True


class Cluster(Protocol):
    """Workers, and the object that replaces lost ones.

    Attributes:
        client: the connection to the scheduler. count: the workers at the last look, and those lost so far.
    """

    client: Client
    count: WorkerCount

    @property
    def workers(self) -> int:
        """The number of workers that there should be."""
        ...

    def heal(self) -> None:
        """Count the workers, and replace lost ones; called now and then while work is waited for."""

    def explain(self) -> str | None:
        """Why there are no workers, if that is known; like the end of a job's log."""
        ...


def workers_text(cluster: Cluster) -> str:
    """``3 of 4 workers, 1 lost``."""
    lost = f", {cluster.count.lost} lost" if cluster.count.lost else ""
    return f"{cluster.count.up} of {counted(cluster.workers, 'worker')}{lost}"
