"""What a run costs by itself: a run like it trains alone for a few epochs on part of the data, and its cost is scaled.

    seconds = s + e t + c v + n w

Symbols: s seconds pass before the first epoch, reading included. An epoch's steps take t seconds, and e epochs are
trained, the last perhaps in part. Scoring the watched validation examples takes v seconds and is done c times. The best
weights are scored at the end: w seconds for each of the n examples of validation and test, which are read from the
store again. The process and the pages of the store are warm. t and v are the least of several measurements: what else
the machine does only adds to them.

On a CPU with one thread, seconds are CPU time: waiting for other processes does not count, though the caches and the
memory that they share make it longer. On a GPU, or with several threads, they are wall-clock time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fusionkit.dataset.draws import watched_split
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import RATE, CostModel
from fusionkit.fit.executor.sample import PLAIN, epoch_times, sample_of, scored_part, size_of
from fusionkit.fit.loader.minibatches import HELD_BYTES, held_bytes, load_into_memory
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.model.warm_start import load_start_weights
from fusionkit.fit.train.decisions import read_blocks
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.train.result import RunResult
from fusionkit.fit.train.schedule import length_of
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.devices import CPU
from fusionkit.specs import RunSpec

SECONDS = 0.6  # counted seconds of all epochs of a sample
EPOCHS, MOST_EPOCHS = 6, 12  # of a sample; the first two are not counted, and every second one is scored
READINGS = 2  # the least of them counts
WATCHED = 256  # validation examples of a sample, or all: of fewer, the time is that of calls more than of examples
GATHERED = 1e9  # bytes of states that a CPU gathers in a second, roughly
STATES = 1 << 28  # bytes of states of a sample, or all: fewer stay in the processor's cache from one epoch to the next
FEW = 0.1  # of a sample's validation and test, in the training that warms the process
COUNTED = 4  # minibatches whose operations are counted: examples differ in length
# Options that a run's cost does not depend on, besides those of PLAIN.
ANY: dict[str, Any] = {"data_seed": 0, "init_seed": 0, "warmup": 0.0, "schedule": "linear", "weight_decay": 0.0}


@dataclass(frozen=True)
class CostAlone:
    """What a run of one kind costs by itself.

    Attributes:
        start, steps, scoring: seconds before the first epoch, of an epoch's steps, and of scoring the watched examples.
        ending: seconds for each example of validation and test after the last epoch.
        training_flops, prediction_flops: floating-point operations per example: forward and backward; forward only.
        peak_memory: the most bytes of tensors that a step holds: minibatch, weights, moments, gradients and
            intermediate results; not the examples that are held in memory.
    """

    start: float
    steps: float
    scoring: float
    ending: float
    training_flops: int
    prediction_flops: int
    peak_memory: int

    def seconds(self, epochs: float, scorings: int, scored_at_the_end: int) -> float:
        """Seconds of a whole run."""
        return self.start + epochs * self.steps + scorings * self.scoring + scored_at_the_end * self.ending


class CostsAlone:
    """The costs of the kinds of runs that a context has met."""

    def __init__(self, context: SweepContext) -> None:
        self._context, self._count = context, CostModel(context)

    def of(self, spec: RunSpec) -> CostAlone:
        """The cost of a run, measured at the first run of its kind; raises if memory runs out."""
        learned, watched = self._count.learned(spec), self._count.watched(spec)
        kind = replace(spec, epochs=1, validate_every=2, **PLAIN, **ANY)
        known: dict[Any, CostAlone] = self._context.costs
        if (kind, learned, watched) not in known:
            known[kind, learned, watched] = self._measured(kind, learned, watched)
        return known[kind, learned, watched]

    def record(self, spec: RunSpec, result: RunResult) -> Mapping[str, Any]:
        """The fields of a finished run's record."""
        cost, data = self.of(spec), self._context.data(spec)
        length = length_of(spec, self._count.learned(spec))
        scorings = sum(point["validation_score"] is not None for point in result.curve)
        return {
            "seconds_alone": cost.seconds(result.steps / length.epoch, scorings, _scored_at_the_end(data)),
            "training_flops": cost.training_flops,
            "prediction_flops": cost.prediction_flops,
            "peak_memory_alone": cost.peak_memory,
            "kept_bytes": sum(weights.nbytes for weights in result.weights.values()),
            "threads": torch.get_num_threads(),
        }

    def _measured(self, spec: RunSpec, learned: int, watched: int) -> CostAlone:
        """The cost of a kind, measured on part of its examples, or for more epochs where an epoch is short."""
        layers, clock = self._context.positions(spec), clock_of(self._context.device)
        spec, part, holds = self._sample(spec, learned, watched)
        seen = watched_split(spec, part)
        grown, shown = learned / max(len(part.train), 1), watched / max(size_of(seen), 1)
        most_held = None if holds else held_bytes(seen, layers)
        # First, so that no page of the store comes from the disk afterwards: that can take longer than the run.
        loading, watching = (_least(partial(load_into_memory, each, layers), clock) for each in (part.train, seen))
        for split in (part.validation, *part.scored_tests.values()):
            for _ in read_blocks(split, layers):  # a block at a time: they may be larger than memory
                pass
        # A few examples first: what a process does only once is not counted.
        few = scored_part(sample_of(part, min(spec.batch_size, len(part.train))), FEW)
        epoch_times(self._context, [replace(spec, epochs=2)], few, clock, most_held)
        times, end = epoch_times(self._context, [spec], part, clock, most_held)
        took = np.diff(times)  # [epochs]
        # Epochs 3, 5, … are not scored, epochs 4, 6, … are.
        steps, scored = (took[first::2].min() if len(took) > first else 0.0 for first in (2, 3))
        scoring = max(scored - steps, 0.0)
        more = loading * (grown - 1) if holds else 0.0
        start = float(took[:1].sum()) - steps + more + watching * (shown - 1)
        training, prediction, peak = self._counted(spec, part)
        return CostAlone(
            start=max(start, 0.0),
            steps=steps * grown,
            scoring=scoring * shown,
            ending=end / max(_scored_at_the_end(part), 1),
            training_flops=training,
            prediction_flops=prediction,
            peak_memory=peak,
        )

    def _sample(self, spec: RunSpec, learned: int, watched: int) -> tuple[RunSpec, TaskData, bool]:
        """The run that is measured, its data, and whether the real run holds its examples in memory."""
        data, layers = self._context.data(spec), self._context.positions(spec)
        whole = size_of(data.validation)
        states = held_bytes(data.train, layers) * learned / max(len(data.train), 1)
        holds = states + held_bytes(data.validation, layers) * watched / max(whole, 1) <= HELD_BYTES
        counted = self._count.products_over(spec, learned, watched / 2) / RATE + states / GATHERED
        share = max(min(SECONDS / EPOCHS / counted, 1.0), min(STATES / max(states, 1), 1.0))
        batches = max(round(share * learned / spec.batch_size), 1)
        part = sample_of(data, learned if share == 1 else min(batches * spec.batch_size, learned))
        # Validation and test in the same proportion, because both are scored at the end.
        part = scored_part(part, max(share, min(WATCHED / max(watched, 1), 1.0)))
        if watched < whole:
            tasks = len(data.parts) if spec.is_multi else 1
            spec = replace(spec, validate_on=max(round(size_of(part.validation) / whole * watched / tasks), 1))
        epochs = 2 * round(min(max(SECONDS / counted, EPOCHS), MOST_EPOCHS) / 2)
        return replace(spec, epochs=epochs), part, holds

    def _counted(self, spec: RunSpec, part: TaskData) -> tuple[int, int, int]:
        """Operations per trained and per predicted example, and the peak bytes of a step."""
        layers, count = self._context.positions(spec), min(len(part.train), spec.batch_size)
        starts = range(0, len(part.train) - count + 1, count)[:COUNTED]
        labels = {name: each.labels for name, each in part.parts.items()}
        classes = {name: len(known) for name, known in labels.items()}
        # The meter is inside: copies in float32 are a kernel's scratch memory.
        with in_float32(spec.compute_dtype, CPU), Meter() as meter:
            model = model_of(spec, len(layers), self._context.store.hidden, classes, part.sides, part.lm_head)
            load_start_weights(model, spec, self._context.start(spec), labels)
            runs = LoopedRuns([spec], [model])
            trained, before = 0, meter.flops
            for start in starts:
                batch = part.train.batch(np.arange(start, start + count), layers)
                began = meter.flops
                if runs.learns:
                    runs.step([batch], [spec.lr])
                trained += meter.flops - began
                with torch.inference_mode(False), torch.no_grad():
                    runs.decide(batch)
                del batch  # or the next one is held beside it
        # A frozen LM head shares the store's weights, which the meter did not see made.
        shared = {} if part.lm_head is None or spec.head != "lm-head" else part.lm_head.weights
        peak = meter.peak_bytes + sum(weights.nbytes for weights in shared.values())
        count *= len(starts)
        return trained // count, (meter.flops - before - trained) // count, peak


def _scored_at_the_end(data: TaskData) -> int:
    """Examples of validation and test. Validation counts where it was scored too: its layer weights are averaged."""
    return sum(map(size_of, (data.validation, *data.scored_tests.values())))


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock for a run by itself: CPU time on a CPU with one thread, else wall-clock time."""
    return time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def _least(action: Callable[[], object], clock: Callable[[], float]) -> float:
    """The least seconds of twice the same."""
    took = list[float]()
    for _ in range(READINGS):
        began = clock()
        action()
        took.append(clock() - began)
    return min(took)
