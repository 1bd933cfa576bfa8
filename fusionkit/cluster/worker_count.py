"""How many workers a scheduler has, and how many it has lost: by their addresses, which no two workers ever share."""

from __future__ import annotations

import contextlib
import time

from distributed import Client

LOOK_SECONDS = 1.0  # between two questions


class WorkerCount:
    """Counts.

    Attributes:
        up: workers at the last look. lost: those that were there once and no more.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: set[str] = set()
        self._looked = 0.0
        self.up = self.lost = 0

    def look(self) -> bool:
        """Ask the scheduler, at most once in :data:`LOOK_SECONDS`; whether it was asked."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        with contextlib.suppress(OSError, ValueError):  # the scheduler is gone: told of by whoever waits for tasks
            now = set(self._client.nthreads())  # type: ignore[no-untyped-call]
            self.lost += len(self._known - now)
            self._known, self.up = now, len(now)
        self._looked = time.monotonic()
        return True
