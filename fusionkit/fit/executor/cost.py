"""The counted cost of runs: the seconds of their products and the bytes of their weights.

    products = 2 (P_f + z) (3 n_f + v_f) + 2 P_h (3 n_h + v_h)          multiplications and additions of an epoch
    seconds  = (e · products + what is scored at the end) / RATE        bytes = Σ_runs 4 P · COPIES, and what is held

Symbols: P_f and P_h are the numbers of weights of the fusion and the head, frozen ones included, and z the numbers in
a row's states. The fusion reads n_f rows of training and v_f of validation, the head n_h and v_h: each weight is
multiplied with each row once in the forward pass and twice in the backward pass. e: epochs; P: weights that a run
trains. For a run that trains through the encoder, only the encoder's products are counted: 2 · 12 d² per sub-token and
layer that runs, with d the hidden size.

A part that ``--freeze`` names is counted as if it were trained. The products are multiplied by a factor that is
measured for runs with the same part frozen (:mod:`fusionkit.fit.executor.estimate`); the bytes are an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from fusionkit.dataset.online_code import block_ends
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.units import Unit
from fusionkit.fit.loader.minibatches import HELD_BYTES, held_bytes
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.train.schedule import length_of
from fusionkit.fit.vectorized.width import shape_of
from fusionkit.heads import reads_sequences
from fusionkit.machine.memory import KEPT_BYTES, resident
from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of

# Products per second on one core: the median of 13 sweeps on one machine (range 11e9 to 74e9).
RATE = 25e9
COPIES = 8  # of weights: themselves, gradients, moments, the best epoch's, one in bfloat16, one that is written


@dataclass(frozen=True)
class Sizes:
    """The numbers of examples of a data set: to train on, to choose the epoch by, to score at the end."""

    train: int
    validation: int
    tests: int


class CostModel:
    """Counts what the runs of one sweep cost; ``sizes``: of the whole data, where the context holds a sample of it."""

    def __init__(self, context: SweepContext, sizes: Sizes | None = None) -> None:
        self.context, self._sizes = context, sizes
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def data(self, spec: RunSpec) -> TaskData:
        """The splits that a run is counted over.

        A sample may be smaller than the draw of an online code: its blocks count over the whole sample.
        """
        return self.context.data(spec if self._sizes is None else replace(spec, mdl=None))

    def learned(self, spec: RunSpec) -> int:
        """How many examples a run learns from."""
        if self._sizes is None:
            return self.context.learned(spec)
        if spec.mdl is not None:
            whole = self.learned(replace(spec, mdl=None))
            return block_ends(whole)[spec.mdl - 1]
        if spec.shots is None:
            return self._sizes.train
        return min(spec.shots * self.context.data(spec).classes, self._sizes.train)

    def an_epoch(self, spec: RunSpec) -> int:
        """Examples in an epoch's steps: all that a run learns from, unless it has ``steps_per_epoch``."""
        return self.learned(spec) if spec.steps_per_epoch is None else spec.steps_per_epoch * spec.batch_size

    def watched(self, spec: RunSpec) -> int:
        """Validation examples that are scored each time; with several tasks ``validate_on`` counts for each of them."""
        count = self._all_sizes(spec).validation
        if spec.validate_on is None:
            return count
        tasks = len(self.context.data(spec).parts) if spec.is_multi else 1
        return min(spec.validate_on * tasks, count)

    def epochs(self, spec: RunSpec) -> int:
        """Epochs that a run begins if nothing stops it earlier."""
        return length_of(spec, self.learned(spec)).epochs

    def trained(self, spec: RunSpec) -> float:
        """Epochs that a run trains; ``max_steps`` may end the last one early."""
        length = length_of(spec, self.learned(spec))
        return length.steps / length.epoch

    def products(self, spec: RunSpec) -> float:
        """Multiplications and additions of one epoch, validation included."""
        return self.products_over(spec, self.an_epoch(spec), self.watched(spec) / spec.validate_every)

    def products_over(self, spec: RunSpec, learned: int, scored: float) -> float:
        """Multiplications and additions of an epoch that trains on ``learned`` examples and scores ``scored``."""
        data, shape = self.data(spec), self._shape(spec)
        if not spec.is_frozen:
            return self._encoder_products(spec.from_layer or 0) * (3.0 * learned + scored)
        states = len(self.context.positions(spec)) * self.context.store.hidden
        total = (shape.fusions + states) * (3 * learned * _rows(data.train) + scored * _rows(data.validation))
        for name, part in parts_of(spec).items():
            train, validation = data.train.parts[name], data.validation.parts[name]
            units = 3 * learned * _units(part.head, train) + scored * _units(part.head, validation)
            total += shape.heads[name] * units
        return 2.0 * total

    def seconds(self, spec: RunSpec) -> float:
        """Counted seconds of a whole run on one core; with ``patience`` it may take less."""
        sizes = self._all_sizes(spec)
        at_the_end = self.products_over(spec, 0, sizes.validation + sizes.tests)
        return (self.trained(spec) * self.products(spec) + at_the_end) / RATE

    def unit_seconds(self, unit: Unit) -> float:
        """Counted seconds of all runs of a unit."""
        return sum(map(self.seconds, unit))

    def _encoder_products(self, start: int) -> float:
        """Multiplications and additions of one example's forward pass through the encoder's layers above layer
        ``start`` (0: all layers). They are nearly all that such a run computes.
        """
        manifest = self.context.store.manifest
        layers, splits = manifest["encoder"]["layers"] - 1 - start, manifest["splits"].values()
        tokens = sum(each["tokens"] for each in splits) / max(sum(each["examples"] for each in splits), 1)
        return float(2 * 12 * layers * manifest["hidden"] ** 2 * tokens)

    def memory(self, units: Sequence[Unit]) -> int:
        """Bytes that a process takes to do these units one after another."""
        held = max(map(self._held, units), default=0)
        return resident() + held + self.weights(units) + KEPT_BYTES

    def weights(self, units: Sequence[Unit]) -> int:
        """Bytes of the trained weights of the largest unit, in all their :data:`COPIES`."""
        return max((4 * COPIES * sum(map(self._trained_weights, unit)) for unit in units), default=0)

    def _trained_weights(self, spec: RunSpec) -> int:
        """The number of weights that a run trains; through the encoder at most, as if it trained all of its weights."""
        most = 0 if spec.is_frozen else self.context.store.manifest["encoder"]["parameters"]
        return self._shape(spec).trained + int(most)

    def _held(self, unit: Unit) -> int:
        """Bytes of the unit's splits while they are held in memory."""
        if unit[0].is_alone:
            return 0
        data = self.context.data(unit[0])
        layers = tuple({layer for spec in unit for layer in self.context.positions(spec)})
        learned = {spec.data_seed: self.learned(spec) / max(len(data.train), 1) for spec in unit}
        draws = sum(learned.values()) * held_bytes(data.train, layers)
        return min(round(draws) + held_bytes(data.validation, layers), HELD_BYTES)

    def _all_sizes(self, spec: RunSpec) -> Sizes:
        if self._sizes is not None:
            return self._sizes
        data = self.context.data(spec)
        train, validation, *tests = (
            sum(map(len, split.streams)) for split in (data.train, data.validation, *data.scored_tests.values())
        )
        return Sizes(train, validation, sum(tests))

    def _shape(self, spec: RunSpec) -> _Shape:
        """The shape of a run's model, which is built on the meta device, once for all runs of one shape."""
        key = (spec.task, spec.label, spec.pool, shape_of(spec))
        if key not in self._shapes:
            data, layers = self.data(spec), len(self.context.positions(spec))
            classes = {name: len(part.labels) for name, part in data.parts.items()}
            with torch.device("meta"):
                model = model_of(spec, layers, self.context.store.hidden, classes, data.sides, data.lm_head)
            fusions = {id(part.fusion): _numbers(part.get_submodule("fusion")) for part in model.parts.values()}
            self._shapes[key] = _Shape(
                fusions=sum(fusions.values()),
                heads={name: _numbers(part.head) for name, part in model.parts.items()},
                trained=sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
            )
        return self._shapes[key]


@dataclass(frozen=True)
class _Shape:
    """The sizes of a model: numbers in its fusions and in each head, buffers included, and of all trained weights."""

    fusions: int
    heads: Mapping[str, int]
    trained: int


def _numbers(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in chain(module.parameters(), module.buffers()))


def _rows(split: TaskSplit) -> float:
    """Rows per example that a fusion reads."""
    return len(split.rows) / max(len(split), 1)


def _units(head: str, split: TaskSplit) -> float:
    """Rows per example that a head reads: its words, one pooled row, or all rows."""
    return _rows(split) if reads_sequences(head) else len(split.targets) / max(len(split), 1)
