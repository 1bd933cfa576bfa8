"""What a sweep takes, by counting alone: at least so much, enough to plan large work untried; and run beside run.

    seconds ≥ 2 P · Σ_runs e (3 n + v) / peak            bytes ≤ what is held + Σ_runs 4 P · copies
    work    = 2 (P_f + z) (3 w n_f + v_f) + 2 P_h (3 w n_h + v_h)

Symbols: P the numbers that a run learns, each multiplied with each row once on the way forward and twice on the way
back; e epochs, n and v rows learned from and scored in each; ``peak`` as many as a fast core makes in a second.
``work`` is an epoch's: P_f and P_h the fusion's and the head's numbers, frozen ones too, z those of a row's states; n_f
and v_f the rows that the fusion reads, n_h and v_h those that the head does; w how much dearer a product is in the
precision of training than in bfloat16, in which most of scoring is. A fusion that is a linear map of states takes
2 w n_f, for these get no gradient; less what :mod:`fusionkit.fit.vectorized.folding` saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.units import Unit
from fusionkit.fit.loader.minibatches import HELD_BYTES
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.model.precision import FLOAT32, has_bfloat16
from fusionkit.fit.train.options import length_of
from fusionkit.fit.vectorized.folding import Folding
from fusionkit.fit.vectorized.shape import shape_of
from fusionkit.heads import reads_sequences
from fusionkit.memory import resident
from fusionkit.specs import RunSpec

PEAK = 400e9  # multiplications and additions a second, in bfloat16: the fastest core that this was seen on
COPIES = 8  # weights, gradients, moments, the best epoch's, one in bfloat16, one that is written
BESIDE = 1 << 30  # bytes of minibatches and what lies between layers: a minibatch of the longest texts, many runs wide
WIDE = 2.0  # times that a product in float32 takes of one in bfloat16, with instructions for it


class Bounds:
    """Bounds on the runs of one sweep, and what they cost beside each other."""

    def __init__(self, materials: SweepContext) -> None:
        self._materials = materials
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def seconds(self, unit: Unit) -> float:
        """A core hardly needs less."""
        return sum(map(self._products, unit.specs)) / PEAK

    def memory(self, units: Sequence[Unit]) -> int:
        """Bytes: a process that does these units one after another hardly needs more."""
        return resident() + HELD_BYTES + BESIDE + self.weights(units)

    def weights(self, units: Sequence[Unit]) -> int:
        """Bytes of what is learned in the largest of the units, with all that is kept beside it."""
        return max((4 * COPIES * sum(self._shape(spec).learned for spec in unit.specs) for unit in units), default=0)

    def work(self, spec: RunSpec) -> float:
        """What an epoch of a run costs beside others', by its products."""
        data, shape = self._materials.data(spec), self._shape(spec)
        dearer = WIDE if has_bfloat16() and spec.compute_dtype == FLOAT32 else 1.0
        learned, scored = 3 * dearer * self._materials.learned(spec), self._watched(spec) / spec.validate_every
        states = len(self._materials.positions(spec)) * self._materials.store.hidden
        fused = shape.fusions + states
        total = fused * (learned * _rows(data.train) + scored * _rows(data.validation))
        for numbers, name, train, validation in zip(
            shape.heads, spec.head.split("+"), data.train.parts, data.validation.parts, strict=True
        ):
            total += numbers * (learned * _units(name, train) + scored * _units(name, validation))
        return 2.0 * (total - self._folded(spec, shape.folding, dearer))

    def _folded(self, spec: RunSpec, folding: Folding | None, dearer: float) -> float:
        """The multiplications of an epoch that a run does without, because its fusion is a linear map."""
        if folding is None:
            return 0.0
        data, examples = self._materials.data(spec), self._materials.learned(spec)
        back = dearer * folding.inputs * folding.between * examples * _rows(data.train)
        if self._materials.device.type != "cpu":  # nothing is folded there
            return back
        size = max(min(spec.batch_size, examples), 1)
        step = folding.saves(size * _rows(data.train), learns=True)
        scoring = folding.saves(self._watched(spec) * _rows(data.validation), learns=False)
        return back + dearer * step * examples / size + scoring / spec.validate_every

    def _products(self, spec: RunSpec) -> float:
        data = self._materials.data(spec)
        rows = 3 * self._materials.learned(spec) * _sure_rows(data.train)
        rows += self._watched(spec) * _sure_rows(data.validation) / spec.validate_every
        epochs = length_of(spec, self._materials.learned(spec)).epochs
        return 2.0 * self._shape(spec).learned * epochs * rows

    def _watched(self, spec: RunSpec) -> int:
        """Validation examples that are scored at once."""
        count = len(self._materials.data(spec).validation)
        return min(spec.validate_on or count, count)

    def _shape(self, spec: RunSpec) -> _Shape:
        """Of the run's model, made without memory behind it; once for all runs of one shape."""
        key = (spec.task, spec.label, spec.pool, shape_of(spec))
        if key not in self._shapes:
            data, layers = self._materials.data(spec), len(self._materials.positions(spec))
            classes = [len(part.labels) for part in data.parts]
            with torch.device("meta"):
                model = model_of(spec, layers, self._materials.store.hidden, classes, data.train.sides, data.lm_head)
            fusions = {id(part.fusion): _numbers(part.get_submodule("fusion")) for part in model.parts}
            self._shapes[key] = _Shape(
                sum(fusions.values()),
                [_numbers(part.head) for part in model.parts],
                sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
                Folding.of(model) if isinstance(model, FusedModel) else None,
            )
        return self._shapes[key]


@dataclass(frozen=True)
class _Shape:
    """Numbers of a model: of its fusions, of each head, and of all that is learned."""

    fusions: int
    heads: Sequence[int]
    learned: int
    folding: Folding | None


def _numbers(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in chain(module.parameters(), module.buffers()))


def _rows(split: TaskSplit) -> float:
    """Rows an example, as a fusion reads them."""
    return len(split.rows) / max(len(split), 1)


def _units(head: str, split: TaskSplit) -> float:
    """Rows an example, as a head reads them: words, one that is pooled, or all."""
    return _rows(split) if reads_sequences(head) else len(split.targets) / max(len(split), 1)


def _sure_rows(split: TaskSplit) -> float:
    """Rows an example; a head behind a pool reads one of them, so no more than one is sure."""
    return _rows(split) if split.kept is not None else 1.0
