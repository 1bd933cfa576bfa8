"""Runs of a sweep that train through the encoder: their trainer, the reports of their steps, and their saved state.

Stage two imports no encoder: the trainer is imported by its path when such a run is trained.
"""

from __future__ import annotations

import importlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fusionkit.errors import UsageError
from fusionkit.specs import RunSpec

TRAINER = "fusionkit.tuning.trainer"
SAVE_EVERY = "2m"  # a killed run may lose this much, unless the user says otherwise


@dataclass(frozen=True)
class TunedStep:
    """A step of a run in training.

    Attributes:
        number: from 1 to ``steps``; 0 where none was made. loss: of the step's minibatch, NaN where none was made.
        seconds_left: of the run, at its pace so far. epochs: those since the last report that are done or will
            certainly not be trained, mostly a fraction of one. resumed: epochs that an earlier process did;
            in the first report alone.
    """

    number: int
    steps: int
    loss: float
    seconds_left: float
    epochs: float
    resumed: float | None = None


OnStep = Callable[[RunSpec, TunedStep], None]


def no_report(*_: Any) -> None:
    """The callback of a run whose progress nobody reads."""


@dataclass(frozen=True)
class StateFile:
    """Where the state of a run in training is saved, and how often: every ``steps`` steps if given, else every
    ``seconds`` seconds.
    """

    path: Path
    seconds: float
    steps: int | None = None

    @classmethod
    def of(cls, path: Path, every: str) -> Self:
        """From the user's text, like ``500`` for steps or ``10m`` for minutes; UsageError for any other."""
        match = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)(m?)", every)
        if match is None or not (number := float(match[1])) or not (match[2] or number.is_integer()):
            raise UsageError(
                "--save-every takes a number of steps, or minutes",
                expected="like 500, or 10m",
                received=every,
                remedy="write steps like 500, or minutes like 10m",
            )
        return cls(path, 60 * number) if match[2] else cls(path, math.inf, int(number))

    def is_due(self, done: int, ended: bool, last: float) -> bool:
        """Whether to save after ``done`` steps, with which an epoch may have ended; ``last`` is the monotonic time of
        the last save.
        """
        if self.steps is None:
            return time.monotonic() - last > self.seconds
        return ended or done % self.steps == 0


def progress_text(spec: RunSpec, step: TunedStep) -> str:
    """``full + last: step 120 of 486, loss 0.432, 2:10 left of this run``."""
    minutes, seconds = divmod(round(step.seconds_left), 60)
    loss = "" if math.isnan(step.loss) else f"loss {step.loss:.3g}, "
    where = f"step {step.number:,} of {step.steps:,}"
    return f"{spec.method} + {spec.fusion}: {where}, {loss}{minutes}:{seconds:02} left of this run"


def trainer() -> Any:
    """The module whose ``train`` trains one run; it loads transformers."""
    return importlib.import_module(TRAINER)
