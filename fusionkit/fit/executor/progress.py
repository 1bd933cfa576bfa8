"""Who watches a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class FitProgress(Protocol):
    """Who watches a sweep: the command line's table, or nobody."""

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        """The sweep has this many runs left, of this many epochs together.

        Args:
            work: of each run's epochs by its digest, in one unit: many examples and a large fusion take longer.
        """

    def epoch(self, work: float) -> None:
        """One more epoch of one run is done, of this much work."""

    def run(self, record: dict[str, Any]) -> None:
        """A run has ended."""

    def elsewhere(self, record: dict[str, Any]) -> None:
        """A run that was left has been done by another process."""

    def say(self, line: str) -> None:
        """Something the user should know."""
