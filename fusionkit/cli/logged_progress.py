"""Progress of a sweep that also logs each run when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusionkit.cli.sweep_table import SweepTable
from fusionkit.logs import Logs


class LoggedProgress:
    """A :class:`fusionkit.fit.FitProgress` that passes every call on and logs the runs that have ended."""

    def __init__(self, progress: SweepTable, logs: Logs) -> None:
        self._progress, self._logs = progress, logs

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        """The sweep has this many runs left."""
        self._progress.begin(runs, epochs, work)

    def epoch(self, work: float) -> None:
        """One more epoch of one run is done."""
        self._progress.epoch(work)

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""
        self._progress.run(record)
        self._logs.log(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        """Another process has done a run that was left; it may log nothing."""
        self._progress.elsewhere(record)
        self._logs.log(record)

    def say(self, line: str) -> None:
        """A line the user should see."""
        self._progress.say(line)
