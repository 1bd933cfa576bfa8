"""Who watches a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FitProgress:
    """Receives a sweep's progress and shows nothing; the command line's table is one that does."""

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        """The sweep has this many runs left, of this many epochs together, and of so much ``work`` by their digests.

        Work has one unit for all runs: many examples and a large fusion take longer.
        """

    def epoch(self, work: float) -> None:
        """One more epoch of one run is done, of this much work."""

    def step(self, work: float, text: str) -> None:
        """So much more work of a run that trains through the encoder is done; ``text`` says how far the run is."""

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""

    def elsewhere(self, record: dict[str, Any]) -> None:
        """A run that was left has been done by another process."""

    def say(self, line: str) -> None:
        """Something the user should know."""
