"""What a run costs on this machine, from a few steps and scorings of runs like it.

    t(e, v) = t₀ + e · (k · step + v · scored)      e epochs of k steps, v validation examples scored after each

Symbols: ``t₀`` what is paid once a run. Two lengths and two sizes of validation give ``step`` and ``scored``: the
differences, so that neither the building of models nor the first call of anything is counted a step's time.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.unit_job import trained
from fusionkit.fit.train.options import length_of
from fusionkit.memory import PeakMemory
from fusionkit.specs import SHUFFLE, RunSpec

STEPS = 4  # an epoch of a sample
FEW, MANY = 8, 256  # validation examples


@dataclass(frozen=True)
class Cost:
    """What a run of one kind costs.

    Attributes:
        once, step, scored: seconds a run, a step, an example scored. memory: bytes that a run takes while it trains.
    """

    once: float
    step: float
    scored: float
    memory: float

    def seconds(self, spec: RunSpec, data: TaskData, learned: int) -> float:
        """Of a whole run that learns from so many examples; with ``patience`` it may be less."""
        watched = min(spec.validate_on or len(data.validation), len(data.validation))
        after = len(data.validation) + sum(len(split) for split in _tests(data))
        length = length_of(spec, learned)
        times = -(-length.epochs // spec.validate_every)
        return self.once + length.steps * self.step + (times * watched + after) * self.scored


def kind_of(spec: RunSpec, learned: int) -> RunSpec:
    """What runs that cost the same a step have in common: seeds, rates and lengths make no difference."""
    return dataclasses.replace(
        spec,
        data_seed=spec.data_seed if spec.mix is not None else 0,
        init_seed=0,
        lr=1e-4,
        shots=None,
        draw="uniform",
        draw_ids=None,
        validate_on=None,
        validate_every=1,
        epochs=1,
        max_steps=None,
        batch_size=min(spec.batch_size, learned),
        weight_decay=0.0,
        warmup=0.0,
        class_weights="none",
        patience=None,
        order=SHUFFLE,
    )


def measure(kind: RunSpec, width: int, materials: SweepContext, seconds: float) -> Cost:
    """The cost of a run of this kind where ``width`` of them are trained together.

    Args:
        kind: as :func:`kind_of` gives it. seconds: about how long each of the four timings may last.

    Raises:
        MemoryError, RuntimeError: out of memory.
    """
    data = materials.data(kind)
    size = min(STEPS * kind.batch_size, len(data.train))
    many = min(MANY, len(data.validation))
    few = min(FEW, many)

    def timed(epochs: int, judged: int) -> float:
        part = dataclasses.replace(
            data, train=_some(data.train, size), validation=_some(data.validation, judged), test=None, tests={}
        )
        specs = [dataclasses.replace(kind, init_seed=seed, epochs=epochs) for seed in range(width)]
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scores of a handful of examples are often undefined
            for _ in trained(specs, materials, lambda _: None, part):
                pass
        return time.perf_counter() - began

    def slope(judged: int) -> tuple[float, float]:
        """Seconds an epoch, and what was paid once."""
        one, more = timed(1, judged), 1
        while (longer := timed(1 + more, judged) - one) < seconds and more < 64:
            more *= 2
        each = max(longer / more, 0.0)
        return each, max(one - each, 0.0)

    timed(1, few)  # a process's first steps load more of torch
    with PeakMemory() as peak:
        short, once = slope(few)
        long = slope(many)[0] if many > few else short
    scored = max(long - short, 0.0) / max(many - few, 1)
    step = max(short - few * scored, 0.0) / -(-size // kind.batch_size)
    return Cost(once / width, step / width, scored / width, peak.grown / width)


def _some(split: TaskSplit, count: int) -> TaskSplit:
    """So many examples, drawn uniformly: as long as all of them on average."""
    return split.subset(np.sort(np.random.default_rng(0).permutation(len(split))[:count]))


def _tests(data: TaskData) -> Sequence[TaskSplit]:
    return list(data.tests.values()) or ([] if data.test is None else [data.test])
