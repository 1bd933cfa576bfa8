"""The steps of a study: the inputs and outputs of each, and the commands that do the work, which are passed in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from fusionkit.dataset.stores import Stores
from fusionkit.errors import UsageError
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.estimate import Forecast, Measurements
from fusionkit.fit.sweep.blocks import Sweep
from fusionkit.specs import RunSpec

Made = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One step. Its inputs may be known only when the steps before it are done.

    Attributes:
        name: ``encode sst2``, ``fit main``, ``table table1``. command: the shell command that does the same.
        source: returns its inputs, as values that JSON can hold.
        look: returns the outputs that exist, given those that were recorded: contents by name.
        make: does the step and returns its outputs. It continues an interrupted step.
        more: further facts for ``study.json``.
    """

    name: str
    command: str
    source: Callable[[], dict[str, Any]]
    look: Callable[[Made], Made]
    make: Callable[[], Made]
    more: Callable[[], dict[str, Any]] = dict

    def is_done(self, known: Mapping[str, Any] | None) -> bool:
        """Whether inputs and outputs are those of its entry in ``study.json``."""
        if known is None or known["made"] != self.look(known["made"]):
            return False
        return bool(known["from"] == json.loads(json.dumps(self.source())))  # as read back: JSON has no tuples


class Commands(Protocol):
    """The commands that a study needs from its caller.

    Attributes:
        retry_failed: whether runs that failed before are trained again. workers: processes of a sweep, None for as many
            as are worth it. log_to: names of trackers that finished runs are logged to.
    """

    @property
    def retry_failed(self) -> bool: ...

    @property
    def workers(self) -> int | None: ...

    @property
    def log_to(self) -> Sequence[str]: ...

    def say(self, line: str) -> None:
        """Tell the user something."""

    def encode(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a source into a store, or finish one; the options of ``fusionkit encode``, by parameter."""

    def sample(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a sample of a source into a temporary store."""

    def fit(self, store: Stores, sweep: Sweep, runs: Path) -> None:
        """Train the runs of a sweep that are missing."""

    def notes(self, summary: pd.DataFrame) -> Sequence[str]:
        """The notes below a table of compared groups."""

    def forecast(self, store: Stores, sweep: Sweep, runs: Path, known: Measurements) -> Forecast:
        """The cost of the missing runs of a sweep; measured values are added to ``known``."""

    def measure(self, specs: Sequence[RunSpec], cost: CostModel, known: Measurements) -> None:
        """Measure runs over samples of their stores, and add the measurements to ``known``."""

    def tables(self, summary: pd.DataFrame, notes: Sequence[str], across: str | None) -> Mapping[str, str]:
        """The content of a summary's files, by suffix."""


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Put a place in the study's file in front of usage errors."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"{place}: {error.what}", expected=error.expected, received=error.received, remedy=error.remedy
        ) from error
