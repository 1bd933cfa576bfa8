"""What a sweep takes at least, and hardly more than, by counting alone: enough to plan large work untried.

    seconds ≥ 2 (P + z) · Σ_runs e (3 n + v) / peak      bytes ≤ what is held + Σ_runs 4 P · copies

Symbols: P the numbers that a run learns, each multiplied with each row once on the way forward and twice on the way
back; z those of a row's states, which each at least take part; e epochs, n and v rows learned from and scored in each;
``peak`` as many as a fast core makes in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusionkit.fit.data import TaskSplit
from fusionkit.fit.feeding import HELD_BYTES
from fusionkit.fit.joint import model_of
from fusionkit.fit.materials import Materials
from fusionkit.fit.memory import resident
from fusionkit.fit.units import Unit, shape_of
from fusionkit.specs import RunSpec

PEAK = 400e9  # multiplications and additions a second, in bfloat16: the fastest core that this was seen on
COPIES = 8  # weights, gradients, moments, the best epoch's, one in bfloat16, one that is written
BESIDE = 1 << 30  # bytes of minibatches and what lies between layers: a minibatch of the longest texts, many runs wide


class Bounds:
    """Bounds on the runs of one sweep."""

    def __init__(self, materials: Materials) -> None:
        self._materials = materials
        self._sizes: dict[tuple[Any, ...], int] = {}

    def seconds(self, unit: Unit) -> float:
        """A core hardly needs less."""
        return sum(spec.epochs * self.work(spec) for spec in unit.specs) / PEAK

    def work(self, spec: RunSpec) -> float:
        """Products of an epoch of a run, training and scoring: what it costs beside others'."""
        data = self._materials.data(spec)
        watched = min(spec.validate_on or len(data.validation), len(data.validation))
        learned = self._materials.learned(spec)
        rows = 3 * learned * _rows(data.train) + watched * _rows(data.validation) / spec.validate_every
        states = len(self._materials.positions(spec)) * self._materials.store.hidden
        return 2.0 * (self._size(spec) + states) * rows

    def memory(self, units: Sequence[Unit]) -> int:
        """Bytes: a process that does these units one after another hardly needs more."""
        learned = [4 * COPIES * sum(map(self._size, unit.specs)) for unit in units]
        return resident() + HELD_BYTES + BESIDE + max(learned, default=0)

    def _size(self, spec: RunSpec) -> int:
        key = (spec.task, spec.label, shape_of(spec))
        if key not in self._sizes:
            data, layers = self._materials.data(spec), len(self._materials.positions(spec))
            classes = [len(part.labels) for part in data.parts]
            with torch.device("meta"):
                model = model_of(spec, layers, self._materials.store.hidden, classes, data.train.sides, data.lm_head)
            self._sizes[key] = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
        return self._sizes[key]


def _rows(split: TaskSplit) -> float:
    """Rows an example; a head behind a pool reads one of them, so no more than one is sure."""
    return len(split.rows) / max(len(split), 1) if split.kept is not None else 1.0
