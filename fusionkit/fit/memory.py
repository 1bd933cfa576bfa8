"""How much memory this process holds, and held at most: its own pages, not those of files that it maps."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

STATUS = Path("/proc/self/status")
EVERY_SECONDS = 0.002


def resident() -> int:
    """Bytes; where the system does not tell, the most that was ever held."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class PeakMemory:
    """What a piece of work takes: looked at every few milliseconds while it runs.

    Attributes:
        grown: bytes more than at the start, at most.
    """

    def __init__(self) -> None:
        self.grown = 0
        self._start = resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.grown = max(self.grown, resident() - self._start)
            if self._done.wait(EVERY_SECONDS):
                return
