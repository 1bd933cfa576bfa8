"""The receiver of a sweep's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FitProgress:
    """Receives a sweep's progress and shows nothing; the command line's table is one that does."""

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        """The sweep has this many runs left, with this many epochs in total; ``work`` is each run's work, by digest.

        Work has one unit for all runs: many examples and a large fusion are more work.
        """

    def epoch(self, work: float) -> None:
        """One more epoch of one run is done, of this much work."""

    def step(self, work: float, text: str) -> None:
        """A run that trains through the encoder has done this much more work; ``text`` says how far the run is."""

    def resumed(self, work: float) -> None:
        """One of the runs left goes on where an earlier process stopped, which had done this much of its work."""

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""

    def elsewhere(self, record: dict[str, Any]) -> None:
        """One of the runs left was done by another process."""

    def say(self, line: str) -> None:
        """Something the user should know."""
