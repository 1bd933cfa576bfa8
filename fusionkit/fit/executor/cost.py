"""What runs cost, by counting: the seconds of their products and the bytes of their weights.

    products = 2 (P_f + z) (3 n_f + v_f) + 2 P_h (3 n_h + v_h)          multiplications and additions of an epoch
    seconds  = (e · products + what is scored at the end) / RATE        bytes = Σ_runs 4 P · COPIES, and what is held

Symbols: P_f and P_h the fusion's and the head's numbers, frozen ones too, z those of a row's states; n_f and v_f the
rows of training and validation that the fusion reads, n_h and v_h those that the head does: each number is multiplied
with each row once on the way forward and twice on the way back; e epochs; P what a run learns. Of a run that trains
through the encoder the encoder's products are counted alone, 12 d² for a sub-token in each layer that runs.
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

# Products a second of one core: the median of 13 sweeps on the machine that this was measured on (11 to 74).
RATE = 25e9
COPIES = 8  # weights, gradients, moments, the best epoch's, one in bfloat16, one that is written


@dataclass(frozen=True)
class Sizes:
    """Examples of a data set: to learn from, to choose the epoch by, to score at the end."""

    train: int
    validation: int
    tests: int


class CostModel:
    """Counts what the runs of one sweep cost; ``sizes`` are the data's, where the context holds a sample of it."""

    def __init__(self, context: SweepContext, sizes: Sizes | None = None) -> None:
        self.context, self._sizes = context, sizes
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

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
        """Examples of an epoch's steps: all that a run learns from, unless its ``steps_per_epoch`` says otherwise."""
        return self.learned(spec) if spec.steps_per_epoch is None else spec.steps_per_epoch * spec.batch_size

    def watched(self, spec: RunSpec) -> int:
        """Validation examples that are scored at once; of several tasks ``validate_on`` is each one's."""
        count = self._all_sizes(spec).validation
        limit = spec.validate_on and spec.validate_on * (len(self.context.data(spec).parts) if spec.is_multi else 1)
        return min(limit or count, count)

    def epochs(self, spec: RunSpec) -> int:
        """Epochs that a run begins, where nothing stops it earlier."""
        return length_of(spec, self.learned(spec)).epochs

    def trained(self, spec: RunSpec) -> float:
        """Epochs that a run trains; ``max_steps`` may end the last one early."""
        length = length_of(spec, self.learned(spec))
        return length.steps / length.epoch

    def products(self, spec: RunSpec) -> float:
        """Of an epoch."""
        return self.products_over(spec, self.an_epoch(spec), self.watched(spec) / spec.validate_every)

    def products_over(self, spec: RunSpec, learned: int, scored: float) -> float:
        """Of an epoch that learns from so many examples and scores so many."""
        data, shape = self.context.data(spec), self._shape(spec)
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
        """Of a whole run on one core; with ``patience`` it may be less."""
        sizes = self._all_sizes(spec)
        at_the_end = self.products_over(spec, 0, sizes.validation + sizes.tests)
        return (self.trained(spec) * self.products(spec) + at_the_end) / RATE

    def unit_seconds(self, unit: Unit) -> float:
        """Of all runs of a unit."""
        return sum(map(self.seconds, unit))

    def _encoder_products(self, start: int) -> float:
        """Of an example through the encoder's layers above a stored one, 0 for all of them; nearly all that such a run
        computes.
        """
        manifest = self.context.store.manifest
        layers, splits = manifest["encoder"]["layers"] - 1 - start, manifest["splits"].values()
        tokens = sum(each["tokens"] for each in splits) / max(sum(each["examples"] for each in splits), 1)
        return float(2 * 12 * layers * manifest["hidden"] ** 2 * tokens)

    def memory(self, units: Sequence[Unit]) -> int:
        """Bytes of a process that does these units one after another."""
        held = max(map(self._held, units), default=0)
        return resident() + held + self.weights(units) + KEPT_BYTES

    def weights(self, units: Sequence[Unit]) -> int:
        """Bytes of what is learned in the largest of the units, with all that is kept beside it."""
        return max((4 * COPIES * sum(map(self._learned, unit)) for unit in units), default=0)

    def _learned(self, spec: RunSpec) -> int:
        """Numbers that a run learns; through the encoder as many as that has at most."""
        most = 0 if spec.is_frozen else self.context.store.manifest["encoder"]["parameters"]
        return self._shape(spec).learned + int(most)

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
        data = self.context.data(spec)
        tests = data.tests.values() or ([] if data.test is None else [data.test])
        examples = [sum(map(len, split.streams)) for split in (data.train, data.validation, *tests)]
        return self._sizes or Sizes(examples[0], examples[1], sum(examples[2:]))

    def _shape(self, spec: RunSpec) -> _Shape:
        """Of the run's model, made without memory behind it; once for all runs of one shape."""
        key = (spec.task, spec.label, spec.pool, shape_of(spec))
        if key not in self._shapes:
            data, layers = self.context.data(spec), len(self.context.positions(spec))
            classes = {name: len(part.labels) for name, part in data.parts.items()}
            with torch.device("meta"):
                model = model_of(spec, layers, self.context.store.hidden, classes, data.sides, data.lm_head)
            fusions = {id(part.fusion): _numbers(part.get_submodule("fusion")) for part in model.parts.values()}
            self._shapes[key] = _Shape(
                sum(fusions.values()),
                {name: _numbers(part.head) for name, part in model.parts.items()},
                sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
            )
        return self._shapes[key]


@dataclass(frozen=True)
class _Shape:
    """Numbers of a model: of its fusions, of each head, and of all that is learned."""

    fusions: int
    heads: Mapping[str, int]
    learned: int


def _numbers(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in chain(module.parameters(), module.buffers()))


def _rows(split: TaskSplit) -> float:
    """Rows an example, as a fusion reads them."""
    return len(split.rows) / max(len(split), 1)


def _units(head: str, split: TaskSplit) -> float:
    """Rows an example, as a head reads them: words, one that is pooled, or all."""
    return _rows(split) if reads_sequences(head) else len(split.targets) / max(len(split), 1)
