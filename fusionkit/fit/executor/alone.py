"""What a run costs by itself: a run like it trains alone for a few epochs on part of the data, and its cost is scaled.

    seconds = s + e t + c v + n v / n_v

Symbols: s seconds pass before the first epoch, reading included. An epoch's steps take t seconds, and e epochs are
trained, the last perhaps in part. Scoring the n_v validation examples takes v seconds and is done c times. n examples
are scored at the end. The process and the pages of the store are warm. All but s are the least of several measurements:
what else the machine does only adds to them.

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

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import RATE, CostModel
from fusionkit.fit.executor.sample import PLAIN, epoch_times, sample_of, some
from fusionkit.fit.loader.minibatches import HELD_BYTES, held_bytes, load_into_memory
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.model.warm_start import load_start_weights
from fusionkit.fit.train.meter import Meter
from fusionkit.fit.train.result import RunResult
from fusionkit.fit.train.schedule import length_of
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.specs import RunSpec

SECONDS = 0.6  # counted seconds of all epochs of a sample
EPOCHS, MOST_EPOCHS = 8, 12  # of a sample; the first two are not counted, and every second one is scored
READINGS = 3  # the least of them counts
WATCHED = 256  # validation examples of a sample, or all: of fewer, the time is that of calls more than of examples
WIDE = 8192  # examples of train that are read to see how long an epoch's reading takes
COUNTED = 4  # minibatches whose operations are counted: examples differ in length
# Options that a run's cost does not depend on, besides those of PLAIN.
ANY: dict[str, Any] = {"data_seed": 0, "init_seed": 0, "warmup": 0.0, "schedule": "linear", "weight_decay": 0.0}


@dataclass(frozen=True)
class CostAlone:
    """What a run of one kind costs by itself.

    Attributes:
        start, steps, scoring: seconds before the first epoch, of an epoch's steps, and of scoring the watched examples.
        scored_each: the number of watched validation examples.
        training_flops, prediction_flops: floating-point operations per example: forward and backward; forward only.
        peak_memory: the most bytes of tensors that a step holds: minibatch, weights, moments, gradients and
            intermediate results; not the examples that are held in memory.
    """

    start: float
    steps: float
    scoring: float
    scored_each: int
    training_flops: int
    prediction_flops: int
    peak_memory: int

    def seconds(self, epochs: float, scorings: int, scored_at_the_end: int) -> float:
        """Seconds of a whole run."""
        each = self.scoring / max(self.scored_each, 1)
        return self.start + epochs * self.steps + scorings * self.scoring + scored_at_the_end * each


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
        tests = sum(map(len, data.scored_tests.values()))
        whole = len(data.validation) if result.watched < len(data.validation) else 0
        return {
            "seconds_alone": cost.seconds(result.steps / length.epoch, scorings, whole + tests),
            "training_flops": cost.training_flops,
            "prediction_flops": cost.prediction_flops,
            "peak_memory_alone": cost.peak_memory,
            "kept_bytes": sum(weights.nbytes for weights in result.weights.values()),
            "threads": torch.get_num_threads(),
        }

    def _measured(self, spec: RunSpec, learned: int, watched: int) -> CostAlone:
        """The cost of a kind, measured on part of its examples, or for more epochs where an epoch is short."""
        data, layers = self._context.data(spec), self._context.positions(spec)
        counted = self._count.products_over(spec, learned, watched / 2) / RATE
        share = min(SECONDS / EPOCHS / counted, 1.0)
        epochs = 2 * round(min(max(SECONDS / counted, EPOCHS), MOST_EPOCHS) / 2)
        batches = max(round(share * learned / spec.batch_size), 1)
        part = sample_of(
            data,
            learned=learned if share == 1 else min(batches * spec.batch_size, learned),
            watched=max(round(share * watched), min(WATCHED, watched)),
        )
        clock = clock_of(self._context.device)
        grown, shown = learned / max(len(part.train), 1), watched / max(len(part.validation), 1)
        # First, so that no page of the store comes from the disk afterwards: that can take longer than the run.
        loading, watching = (
            _least(partial(load_into_memory, each, layers), clock) for each in (part.train, part.validation)
        )
        epoch_times(self._context, [replace(spec, epochs=2)], part, clock)  # what a process does only once
        took = np.diff(epoch_times(self._context, [replace(spec, epochs=epochs)], part, clock))  # [epochs]
        # Epochs 3, 5, … are not scored, epochs 4, 6, … are.
        steps, scored = (took[first::2].min() if len(took) > first else 0.0 for first in (2, 3))
        scoring = max(scored - steps, 0.0)
        # The sample is held in memory: reading all examples takes longer, once, or in every minibatch.
        start, reading = float(took[:1].sum()) - steps + watching * (shown - 1), 0.0
        if held_bytes(data.train, layers) * learned / max(len(data.train), 1) <= HELD_BYTES:
            start += loading * (grown - 1)
        else:
            start -= loading
            # Of many examples: those of the sample alone would stay in the processor's cache.
            wide, count = some(data.train, min(learned, WIDE)), min(learned, WIDE)
            held, places = load_into_memory(part.train, layers), tuple(range(len(layers)))
            reading = _least(partial(_gather, wide, layers, spec.batch_size), clock) * len(part.train) / count
            reading -= _least(partial(_gather, held, places, spec.batch_size), clock)
        training, prediction, peak = self._counted(spec, part)
        return CostAlone(
            start=max(start, 0.0),
            steps=(steps + max(reading, 0.0)) * grown,
            scoring=scoring * shown,
            scored_each=watched,
            training_flops=training,
            prediction_flops=prediction,
            peak_memory=peak,
        )

    def _counted(self, spec: RunSpec, part: TaskData) -> tuple[int, int, int]:
        """Operations per trained and per predicted example, and the peak bytes of a step."""
        layers, count = self._context.positions(spec), min(len(part.train), spec.batch_size)
        starts = range(0, len(part.train) - count + 1, count)[:COUNTED]
        labels = {name: each.labels for name, each in part.parts.items()}
        classes = {name: len(known) for name, known in labels.items()}
        with Meter() as meter:
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


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock for a run by itself: CPU time on a CPU with one thread, else wall-clock time."""
    return time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def _least(action: Callable[[], object], clock: Callable[[], float]) -> float:
    """The least seconds of three times the same."""
    took = list[float]()
    for _ in range(READINGS):
        began = clock()
        action()
        took.append(clock() - began)
    return min(took)


def _gather(split: TaskSplit, layers: tuple[int, ...], batch_size: int) -> None:
    """Read every example once, in minibatches."""
    order = np.random.default_rng(0).permutation(len(split))
    for start in range(0, len(order), batch_size):
        split.batch(order[start : start + batch_size], layers)
