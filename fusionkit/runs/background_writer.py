"""Writes finished runs to the disk in a thread of its own, while training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import RunAnswers

MOST_WAITING = 16  # runs that may wait to be written, with their weights in memory


class RunWriter:
    """Writes runs one after the other in a thread: a run is synced up to eight times, and training must not wait for
    that.

    ``kept`` is called for each run that is on the disk, in the order of :meth:`write` and in the caller's thread.
    """

    def __init__(self, runs: RunsFolder, kept: Callable[[RunSpec], None]) -> None:
        self._runs, self._kept = runs, kept
        self._writers = ThreadPoolExecutor(1, thread_name_prefix="keeping runs")
        self._written: deque[tuple[RunSpec, Future[None]]] = deque()

    def __enter__(self) -> Self:
        return self

    def write(
        self,
        spec: RunSpec,
        record: dict[str, Any],
        weights: dict[str, Any],
        delta: Mapping[str, Any] | None = None,
        answers: Mapping[str, RunAnswers] | None = None,
    ) -> None:
        """Start writing a run. Errors of earlier runs are raised here, or at the end."""
        self._written.append((spec, self._writers.submit(self._runs.write, spec, record, weights, delta, answers)))
        self.tell()

    def __exit__(self, *error: object) -> None:
        try:
            self.tell(wait=True)
        finally:
            self._writers.shutdown()

    def tell(self, *, wait: bool = False) -> None:
        """Call ``kept`` for the runs that are on the disk; errors are those of :meth:`write`."""
        while self._written and (wait or self._written[0][1].done() or len(self._written) > MOST_WAITING):
            spec, written = self._written.popleft()
            written.result()
            self._kept(spec)
