"""The steps of a study: the inputs and outputs of each, and the commands that do the work, which are passed in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fusionkit.dataset.stores import Stores
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
        trust_remote_code: whether an encoder may bring code of its own. device: ``auto``, ``cpu`` or ``cuda:0``.
    """

    @property
    def retry_failed(self) -> bool: ...

    @property
    def workers(self) -> int | None: ...

    @property
    def log_to(self) -> Sequence[str]: ...

    @property
    def trust_remote_code(self) -> bool: ...

    @property
    def device(self) -> str: ...

    def say(self, line: str) -> None:
        """Tell the user something."""

    def encode(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a source into a store, or finish one; the options of ``fusionkit encode``, by parameter."""

    def sample(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a sample of a source into a temporary store."""

    def fit(self, store: Stores, sweep: Sweep, runs: Path) -> None:
        """Train the runs of a sweep that are missing."""

    def forecast(self, store: Stores, sweep: Sweep, runs: Path, known: Measurements) -> tuple[Forecast, list[str]]:
        """The cost of the missing runs of a sweep, and notes; measured values are added to ``known``."""

    def measure(self, specs: Sequence[RunSpec], cost: CostModel, known: Measurements) -> None:
        """Measure runs over samples of their stores, and add the measurements to ``known``."""
