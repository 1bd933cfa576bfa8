"""Runs that train through the encoder, among the others of a sweep: how their trainer is found, told and kept.

Stage two imports no encoder: the trainer is imported by its path when such a run is trained.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.specs import RunSpec

TRAINER = "fusionkit.tuning.trainer"
STATE_SECONDS = 120.0  # between two of them


@dataclass(frozen=True)
class TunedStep:
    """A step of a run in training.

    Attributes:
        number: from 1, of so many ``steps``. loss: of the step's minibatch. seconds_left: of the run, at the pace since
            it began. epochs: how many epochs were done since the last word, a part of one mostly.
    """

    number: int
    steps: int
    loss: float
    seconds_left: float
    epochs: float


OnStep = Callable[[RunSpec, TunedStep], None]


@dataclass(frozen=True)
class StateFile:
    """Where the state of a run in training is kept, and how often: every so many ``steps`` where they are given, else
    ``seconds``.
    """

    path: Path
    seconds: float = STATE_SECONDS
    steps: int | None = None


def text_of(spec: RunSpec, step: TunedStep) -> str:
    """``full + last: step 120 of 486, loss 0.432, about 2:10 left of this run``."""
    minutes, seconds = divmod(round(step.seconds_left), 60)
    return (
        f"{spec.method} + {spec.fusion}: step {step.number:,} of {step.steps:,}, loss {step.loss:.3g}, "
        f"{minutes}:{seconds:02} left of this run"
    )


def trainer() -> Any:
    """The module whose ``train`` trains one run; it loads transformers."""
    return importlib.import_module(TRAINER)
