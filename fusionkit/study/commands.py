"""Who does the steps of a study: the command line's own encode, fit and tables, handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from fusionkit.dataset.mixture import Mix
from fusionkit.fit.executor.estimate import Forecast, Measurements
from fusionkit.fit.sweep.blocks import Sweep
from fusionkit.store import Store


class Commands(Protocol):
    """What a study asks of whoever runs it.

    Attributes:
        retry_failed: whether runs that are there as failed are trained again. workers: processes of a sweep, None for
            as many as are worth it.
    """

    @property
    def retry_failed(self) -> bool: ...

    @property
    def workers(self) -> int | None: ...

    def say(self, line: str) -> None:
        """Something the user should know."""

    def encode(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a source into a store, or finish one: options as ``fusionkit encode`` takes them, by parameter."""

    def fit(self, store: Store | Mix, sweep: Sweep, runs: Path) -> None:
        """Train the runs of a sweep that are missing."""

    def notes(self, summary: pd.DataFrame, **choice: str) -> Sequence[str]:
        """What a reader of compared groups must know."""

    def forecast(self, store: Store | Mix, sweep: Sweep, runs: Path, known: Measurements) -> Forecast:
        """What the missing runs of a sweep would cost; what is measured is added to what is known."""

    def tables(self, summary: pd.DataFrame, notes: Sequence[str], across: str | None) -> Mapping[str, str]:
        """A summary as files, by suffix."""
