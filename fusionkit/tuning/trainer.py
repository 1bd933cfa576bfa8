"""Training one run step by step: encoder with its method, then fusion, pool and head, over the same minibatches in the
same order as for a frozen encoder.

Where several tasks have their own stores, each step takes a minibatch of one task, with the task's head and, if it has
any, its own weights of the method (:mod:`fusionkit.tuning.task_sampler`). A frozen run of several tasks reads stored
states; all others compute them.

No random number depends on those drawn before: an epoch's order depends on ``data_seed`` and the epoch, and each step
seeds the generator with ``init_seed`` and its number. So a killed process need only leave the weights, the optimizer's
moments and its progress (:mod:`fusionkit.tuning.state`), and on a CPU the run still ends with the same bytes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fusionkit.dataset.draws import watched_split
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import FusionkitError
from fusionkit.fit.executor.alone import clock_of
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.through_encoder import OnStep, StateFile, TunedStep, no_report
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.model.fused import parameters_of
from fusionkit.fit.model.own_code import sources_of
from fusionkit.fit.model.precision import full_float32, products_in
from fusionkit.fit.train.decisions import decide, score
from fusionkit.fit.train.evaluate import Evaluator
from fusionkit.fit.train.inputs import training_split
from fusionkit.fit.train.loop import Ended, OnEpoch, denormals_as_zero, diverged, fresh_model
from fusionkit.fit.train.result import BestEpoch, DivergenceError, RunResult, RunState, results_of
from fusionkit.fit.train.schedule import precision_of
from fusionkit.fit.train.stopwatch import Stopwatch
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.memory import out_of_memory
from fusionkit.methods.attached import Attached
from fusionkit.methods.per_task import all_own
from fusionkit.specs import WINDOW, RunSpec
from fusionkit.tasks import parts_of
from fusionkit.tuning.best_epochs import with_better_tasks
from fusionkit.tuning.costs import costs_of, task_weights
from fusionkit.tuning.encoder import load_tuned
from fusionkit.tuning.live import live_data, longest_of, refuse_long
from fusionkit.tuning.optimizer import Optimizer
from fusionkit.tuning.pieces import pieces_of, shares_of
from fusionkit.tuning.ranks import Ranks
from fusionkit.tuning.state import SavedState, read_state, unusable, write_state
from fusionkit.tuning.task_sampler import TaskSampler
from fusionkit.tuning.tokens import TokenSource
from fusionkit.tuning.upper_layers import UpperLayers
from fusionkit.tuning.windows import WindowedDraw

STEP, WEIGHTS = 11, 12  # streams of init_seed: dropout of a step, what a method adds
TELL_SECONDS = 0.5  # between two reports of progress


def train(
    spec: RunSpec,
    context: SweepContext,
    on_epoch: OnEpoch = no_report,
    on_step: OnStep = no_report,
    data: TaskData | None = None,
    keeping: StateFile | None = None,
) -> Ended:
    """Train a run to its end, from the state that a killed process left where there is one.

    Args:
        data: splits to use instead of the context's. keeping: None keeps no state.

    Raises:
        EncoderError: the encoder cannot be loaded, or is not the store's. UsageError: it cannot take the method.
        StoreError: the state that was left is damaged. FusionkitError: one of several ranks ran out of memory.
    """
    ranks = Ranks.of_process()
    ranks.announce(spec, keeping)
    random = [context.device] if context.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=random), denormals_as_zero(), full_float32(context.device):
            return spec, TunedRun(spec, context, data or context.data(spec)).train(on_epoch, on_step, keeping)
    except Exception as error:
        if ranks.count == 1 or (lost := out_of_memory(error)) is None:
            raise
        # A sweep would go on after the error itself, while the other ranks wait for this one's part of the run.
        raise FusionkitError(
            f"process {ranks.rank + 1} of {ranks.count} cannot train {spec.method}: {lost}",
            remedy="choose --checkpointing, a higher --accumulate or a smaller --batch-size",
        ) from error


def follow(context: SweepContext) -> None:
    """Help rank 0 with each run that it trains, until it has ended; nothing is reported or kept here."""
    while (told := Ranks.of_process().told()) is not None:
        spec, keeping = told
        train(spec, context, keeping=keeping)


class TunedRun:
    """A run in training: :func:`train` runs it to its end, a benchmark takes single steps.

    Attributes:
        length: its steps and epochs.
    """

    def __init__(self, spec: RunSpec, context: SweepContext, data: TaskData) -> None:
        self._spec, self._device, self._ranks = spec, context.device, Ranks.of_process()
        self._clock, self._alone = clock_of(context.device), 0.0
        self._watch = Stopwatch(context.device)
        seed_of(spec, WEIGHTS)
        self._attached, self._data = Attached.of_nothing(), data
        if not spec.is_frozen:
            tuned = load_tuned(context.store, spec, context.device, context.trust_remote_code)
            self._attached, source = tuned.attached, TokenSource(context.store)
            if (table := tuned.attached.structure.most_positions) is not None:
                refuse_long(table, tuned.attached.positions_added, longest_of(source, data))
            start = spec.from_layer
            upper = None if start is None else UpperLayers(tuned.encoder, tuned.attached, start)
            how = (context.store.layers, self._ranks, upper, self._use, spec.fusion)
            self._data = live_data(data, source, tuned.encoder, *how)
        draw = training_split(spec, self._data)
        self._run = RunState(spec, context.positions(spec), draw)
        self.length = self._run.length
        self._watched = watched_split(spec, self._data)
        sizes = [part.batch_size for part in parts_of(spec).values()]
        layers, windowed = self._run.layers, spec.order == WINDOW
        self._streams = [
            WindowedDraw(live, layers, Sampler(stored, spec.order, spec.data_seed), size, windowed)
            for live, stored, size in zip(draw.streams, training_split(spec, data).streams, sizes, strict=False)
        ]
        counts = [len(stream.draw) for stream in self._streams]
        self._tasks = TaskSampler(spec.sampling, counts, self.length, spec.data_seed)
        self._hidden, plain = context.store.hidden, dataclasses.replace(spec, choose_epoch="mean")
        learning = RunState(plain, layers, draw)
        self._model = fresh_model(learning, self._data, self._hidden, context.start(spec)).to(self._device)
        self._optimizer = self._fresh_optimizer()
        self._evaluator = (
            Evaluator(self._data, self._watched) if Evaluator.can(self._data) and len(self._watched) else None
        )
        self._total = 0.0  # sum of this epoch's losses over its examples
        self._best_delta: Mapping[str, torch.Tensor] = {}
        self._best_epochs: dict[str, int] = {}  # of each task, where each has its own

    def _use(self, task: str) -> None:
        if self._attached.use is not None:
            self._attached.use(task)

    def train(self, on_epoch: OnEpoch, on_step: OnStep, keeping: StateFile | None) -> RunResult | DivergenceError:
        """The run's result, or the error of a loss that is not finite."""
        run, length = self._run, self.length
        costs = costs_of(self._attached, self._model, run, self._optimizer, self._device, self._ranks.count)
        done = self._restored(keeping)
        self._watch.begin()
        self._began = self._clock()
        if float(self._ranks.sum(torch.tensor(float(done), device=self._device))) != done * self._ranks.count:
            raise FusionkitError(
                f"the processes that share {run.spec.method} see different states of it",
                expected="one state, which all machines see",
                received=f"step {done} in process {self._ranks.rank + 1} of {self._ranks.count}",
                remedy="put the runs on a file system that all machines share",
            )
        progress = _Progress(run, done, on_epoch, on_step)
        kept, at = time.monotonic(), done
        if not self._optimizer.weights:  # nothing is left to train, so the run is only scored
            at = length.steps
        while at < length.steps:
            epoch = at // length.epoch + 1
            loss, examples = self.step(at)
            if not math.isfinite(loss):
                run.loss = loss
                progress.end()
                return diverged(run, epoch)
            self._total, at = self._total + loss * examples, at + 1
            progress.step(at, loss)
            ended = at % length.epoch == 0 or at == length.steps
            if ended:
                self._end_epoch(epoch)
                progress.epoch(epoch)
                if run.is_done(epoch):
                    at = length.steps
            if keeping and self._ranks.rank == 0 and keeping.is_due(at, ended, kept):
                self._keep(keeping, at)
                kept = time.monotonic()
        progress.end()
        if run.best is None:  # nothing was to be trained
            self._end_epoch(0)
        return self._result(costs)

    def _fresh_optimizer(self) -> Optimizer:
        head = [weights for weights in self._model.parameters() if weights.requires_grad]
        return Optimizer(self._spec, head, self._attached, self.length.steps)

    def step(self, number: int) -> tuple[float, int]:
        """Make the step with this number, from 0; its loss, and how many examples its minibatch has."""
        spec, layers, ranks = self._spec, self._run.layers, self._ranks
        task, minibatch = self._tasks.minibatch(number)
        examples, draw = self._streams[task].minibatch(minibatch)
        seed_of(spec, STEP, number)
        if self._attached.begin_step is not None and self._attached.begin_step(number, self.length.steps):
            self._optimizer = self._fresh_optimizer()  # what trains has changed
        self._attached.train()
        self._model.train()
        by_rank = pieces_of(draw, examples, spec.accumulate, ranks.count)
        pieces, total = [piece for own in by_rank for piece in own], 0.0
        shares = shares_of(self._model, [draw.batch(piece, layers, NOTHING) for piece in pieces])
        first = sum(map(len, by_rank[: ranks.rank]))
        mine = slice(first, first + len(by_rank[ranks.rank]))
        if ranks.rank:
            seed_of(spec, STEP, number, ranks.rank)  # each rank has its own dropout
        dtype = precision_of(spec, draw.name)
        for piece, share in zip(pieces[mine], shares[mine], strict=True):
            with in_float32(dtype, self._device):
                with products_in(dtype, self._device, stacked=False):
                    loss = self._model.loss(draw.batch(piece, layers).on(self._device), share)
                    if self._attached.penalty is not None:
                        loss = loss + self._attached.penalty() / len(pieces)
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        ranks.sum_gradients(self._optimizer.weights)
        self._optimizer.step(number)
        return float(ranks.sum(torch.tensor(total, dtype=torch.float64))), len(examples)

    def _end_epoch(self, epoch: int) -> None:
        """Score validation, and keep the best epoch so far."""
        run = self._run
        if epoch:
            first = (epoch - 1) * run.length.epoch
            steps = map(self._tasks.minibatch, range(first, first + run.left(epoch)))
            examples = sum(self._streams[task].size_of(number) for task, number in steps)
            run.loss, self._total = self._total / max(examples, 1), 0.0
            run.curve.append({"epoch": epoch, "loss": run.loss, "validation_score": None})
        if run.is_due(epoch):
            metric, value, found = self.scored(epoch)
            better, each = run.note_score(metric, value, epoch), self._spec.choose_epoch == "each"
            if better or each:
                own = {name: weights.detach().clone() for name, weights in self._model.state_dict().items()}
                now, delta = BestEpoch(value, epoch, own, **found), self._attached.delta()
                if each:
                    kept, shared = (run.best, self._best_delta, now, delta), self._spec.joint_fusion == "shared"
                    run.best, self._best_delta, tasks = with_better_tasks(*kept, list(self._data.parts), shared)
                    self._best_epochs |= dict.fromkeys(tasks, epoch)
                else:
                    run.best, self._best_delta = now, delta
        self._charge()
        if epoch:
            run.epoch_seconds.append(run.seconds)

    def scored(self, epoch: int) -> tuple[str, float, dict[str, Any]]:
        """The metric that chooses the epoch, its value on validation, and what the best epoch keeps of it. Scores are
        rank 0's: those of ranks may differ by rounding, and all must choose the same epoch.
        """
        model, data, watched, layers = self._model, self._data, self._watched, self._run.layers
        self._attached.train(False)
        if self._evaluator is not None:
            decided = decide(model, data, watched, layers)[data.name]
            value: float = self._ranks.of_first(self._evaluator.own(decided.unsqueeze(0))[0])
            return self._evaluator.metric, value, {"decided": decided}
        # Without validation examples the last epoch is the best.
        found = score(model, data, watched, layers, choose=True) if len(watched) else {"epoch": float(epoch)}
        scores: dict[str, float] = self._ranks.of_first(found)
        return *next(iter(scores.items())), {"scores": scores}

    def _charge(self) -> None:
        """Add the seconds since the last call: the clock's, and the run's own, counted as for frozen runs."""
        self._run.seconds += self._watch.read({self._run: 1.0})[self._run]
        now = self._clock()
        self._alone, self._began = self._alone + now - self._began, now

    def _result(self, costs: dict[str, Any]) -> RunResult:
        """The result of the run with its best epoch's weights, scored on every split."""
        run, attached, spec = self._run, self._attached, self._spec
        trained, weights = attached.count(), dict[str, Any]()
        if spec.is_multi:
            weights = dict(task_weights(spec, attached, self._model))
        run.model = self._model
        if spec.choose_epoch == "each":
            run.model = fresh_model(run, self._data, self._hidden).to(self._device)
            self._attached = attached = all_own(attached, list(self._data.parts))
            weights["best_epochs"] = self._best_epochs
        attached.load_delta(self._best_delta)
        attached.train(False)
        self._watch.begin()
        held = (self._watched, None)
        with torch.no_grad():
            (result,) = results_of([[run]], self._data, self._watched, held, self._evaluator, self._watch)
        self._charge()
        delta, own = dict(self._best_delta), parameters_of(self._model, trained=True)
        counts = self._tasks.counts(len(run.curve))
        kept = sum(tensor.nbytes for tensor in (*result.weights.values(), *delta.values()))
        return dataclasses.replace(
            result,
            trained_parameters=own + trained,
            delta=delta,
            sampled=dict(zip(run.draw.parts, counts, strict=True)) if self._spec.is_multi else None,
            costs={
                **costs,
                "kept_bytes": kept,
                "delta_bytes": sum(tensor.nbytes for tensor in delta.values()),
                "encoder_trained_parameters": trained,
                **weights,
                "seconds_alone": self._alone,
                "threads": torch.get_num_threads(),
                "processes": self._ranks.count,
            },
        )

    def _keep(self, keeping: StateFile, done: int) -> None:
        run, best = self._run, self._run.best
        self._charge()
        groups: dict[str, Mapping[str, torch.Tensor]] = {"model": self._model.state_dict()}
        groups |= {"method": self._attached.state(), "moments": self._optimizer.moments()}
        values: dict[str, Any] = {
            "done": done, "total": self._total, "curve": run.curve, "sources": sources_of(self._spec), "best": None,
            "metric": run.metric, "seconds": run.seconds, "alone": self._alone, "epoch_seconds": run.epoch_seconds,
        }  # fmt: skip
        if best is not None:
            groups |= {"best-model": best.weights, "best-delta": self._best_delta}
            groups |= {} if best.decided is None else {"best-decided": {"": best.decided}}
            values["best"] = {"value": best.value, "epoch": best.epoch, "scores": best.scores}
            values["best"] |= {"of": self._best_epochs} if self._best_epochs else {}
        write_state(keeping.path, SavedState(groups, values))
        self._began = self._clock()  # a run alone is not charged for what makes it safe from a kill

    def _restored(self, keeping: StateFile | None) -> int:
        """Load the state that was kept, if any; return the number of steps that are done."""
        state = None if keeping is None else read_state(keeping.path)
        if state is None:
            return 0
        run, values, groups = self._run, state.values, {name: dict(found) for name, found in state.groups.items()}
        if keeping is not None and values.get("sources") != sources_of(run.spec):
            told = [str(source["name"]) for source in sources_of(run.spec) or []]
            raise unusable(keeping.path, f"a state that {' and '.join(told)} wrote as it is now", "one of other code")
        self._model.load_state_dict(groups.get("model", {}))
        self._attached.load_state(groups.get("method", {}))
        self._optimizer = self._fresh_optimizer()
        self._optimizer.restore(groups.get("moments", {}))
        run.curve[:], run.metric = values["curve"], values["metric"]
        run.seconds, run.epoch_seconds[:] = values["seconds"], values["epoch_seconds"]
        self._total, self._alone = values["total"], values["alone"]
        if (best := values["best"]) is not None:
            weights = {name: tensor.to(self._device) for name, tensor in groups["best-model"].items()}
            decided = groups.get("best-decided", {}).get("")
            run.best = BestEpoch(best["value"], best["epoch"], weights, decided, best["scores"])
            self._best_delta, self._best_epochs = groups.get("best-delta", {}), best.get("of", {})
        return int(values["done"])


class _Progress:
    """Reports steps, a few per second, and epochs; ``end`` reports what is left of the run's whole length."""

    def __init__(self, run: RunState, done: int, on_epoch: OnEpoch, on_step: OnStep) -> None:
        self._spec, self._length, self._on_epoch, self._on_step = run.spec, run.length, on_epoch, on_step
        self._first, self._number, self._loss = done, done, math.nan
        self._began = self._last = time.monotonic()
        self._resumed: float | None = done / run.length.epoch
        # Epochs that the steps add up to, and those that were reported as ended.
        self._reported, self._epochs = done / run.length.epoch, 0

    def step(self, number: int, loss: float) -> None:
        """A step is done."""
        now, steps = time.monotonic(), self._length.steps
        self._number, self._loss = number, loss
        if now - self._last >= TELL_SECONDS or number == steps:
            self._last = now
            self._tell((now - self._began) / (number - self._first) * (steps - number), number / self._length.epoch)

    def epoch(self, number: int) -> None:
        """The epochs up to this one are done, or will certainly not be trained."""
        for _ in range(self._epochs, number):
            self._on_epoch(self._spec)
        self._epochs = number

    def end(self) -> None:
        """No more steps are made."""
        if self._reported < self._length.epochs or self._resumed is not None:
            self._tell(0.0, self._length.epochs)
        self.epoch(self._length.epochs)

    def _tell(self, seconds_left: float, epochs: float) -> None:
        done = epochs - self._reported
        self._on_step(
            self._spec, TunedStep(self._number, self._length.steps, self._loss, seconds_left, done, self._resumed)
        )
        self._reported, self._resumed = epochs, None


# States without rows, for batches whose targets alone are needed.
NOTHING = torch.empty(0, 0, 0)


def seed_of(spec: RunSpec, stream: int, *numbers: int) -> None:
    """Seed the generators that dropout and new weights draw from."""
    state = np.random.SeedSequence([spec.init_seed, stream, *(numbers or (0,))]).generate_state(2, np.uint32)
    torch.manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)
