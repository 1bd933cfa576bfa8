"""Training runs together: a unit of runs goes through the same minibatches in lockstep, each run as it would alone.

Minibatches come in the order of each run's ``data_seed``. After each epoch all runs are scored on validation; each
keeps its best epoch's weights and is scored once on test. A run that is done, stops early or diverges leaves the unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.grouped import grouped
from fusionkit.fit.loader.gpu import GpuLoader
from fusionkit.fit.loader.minibatches import Layers
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.fit.model.joint import Model, model_of
from fusionkit.fit.model.precision import full_float32
from fusionkit.fit.model.warm_start import load_start_weights
from fusionkit.fit.train.decisions import block_rows, score
from fusionkit.fit.train.evaluate import Evaluator, StackedRuns, decide_all
from fusionkit.fit.train.halving import Halving
from fusionkit.fit.train.inputs import UnitInputs, training_split
from fusionkit.fit.train.result import BestEpoch, DivergenceError, RunResult, RunState, StoppedRun, results_of
from fusionkit.fit.train.schedule import balanced_weights, check_options
from fusionkit.fit.train.stopwatch import Stopwatch
from fusionkit.fit.vectorized.stack import Stack, stack_of
from fusionkit.fit.vectorized.width import room, shape_of, stack_ranges, weight_bytes, width_of
from fusionkit.heads.softmax import Softmax
from fusionkit.lm_head import LmHead
from fusionkit.machine.devices import CPU, Streams
from fusionkit.plural import counted
from fusionkit.specs import RunSpec
from fusionkit.store.layer_positions import positions_of
from fusionkit.tasks import parts_of
from fusionkit.tasks.head_check import check_sides

Ended = tuple[RunSpec, RunResult | DivergenceError | StoppedRun]
OnEpoch = Callable[[RunSpec], None]


@dataclass(eq=False)
class _Group:
    """A stack and its runs, in its order; ``places``: its layers' positions among the unit's; ``lane``: its stream."""

    stack: Stack
    runs: list[RunState]
    places: Layers
    lane: int

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(run.spec.data_seed for run in self.runs))


def train_run(
    spec: RunSpec,
    data: TaskData,
    layers: Layers,
    hidden: int,
    on_epoch: Callable[[], None],
) -> RunResult:
    """Train one run: :func:`train_unit` of one, but a loss that became infinite or NaN is raised."""
    ((_, result),) = train_unit([spec], data, lambda _: layers, hidden, lambda _: on_epoch())
    if isinstance(result, DivergenceError):
        raise result
    assert isinstance(result, RunResult)  # nothing competes with a single run
    return result


def train_unit(
    specs: Sequence[RunSpec],
    data: TaskData,
    layers_of: Callable[[RunSpec], Layers],
    hidden: int,
    on_epoch: OnEpoch,
    starts: Mapping[str, TrainedRun] | None = None,
    tell: Callable[[str], None] | None = None,
    sharers: int = 1,
    device: torch.device = CPU,
    halving: Halving | None = None,
    most_held: int | None = None,
) -> Iterator[Ended]:
    """Train runs in lockstep; where nothing is left to train, only score.

    Args:
        specs: runs on the same task data, with the same kind and size of draw, batch size, order and watched part of
            validation; one draw per data seed.
        layers_of: the positions, among the stored layers, of the layers that a run's fusion reads.
        on_epoch: called with each spec once per epoch, when the epoch is trained or will certainly not be.
        starts: the trained runs to begin from, by digest. tell: called with notes for the user.
        sharers: how many processes share the memory. device: where the runs are trained; results are on the CPU.
        halving: says which runs stop before their end; None stops none. most_held: bytes of states that a CPU may hold
            in memory; None is :data:`~fusionkit.fit.loader.minibatches.HELD_BYTES`.

    Raises:
        UsageError: a draw is larger than the training split, or a head cannot use an option or the number of sequences
            an example has. MemoryError, RuntimeError: memory runs out.
    """
    unit = _Unit(specs, data, layers_of, hidden, starts or {}, tell or (lambda text: None), sharers, device, most_held)
    yield from unit.score_untrained(on_epoch)
    for epoch in range(1, unit.epochs + 1):
        if not unit.groups:
            return
        yield from unit.train_epoch(epoch, on_epoch, halving)


class _Unit:
    """The runs that are still going, in stacks, and their inputs."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        data: TaskData,
        layers_of: Callable[[RunSpec], Layers],
        hidden: int,
        starts: Mapping[str, TrainedRun],
        tell: Callable[[str], None],
        sharers: int,
        device: torch.device,
        most_held: int | None,
    ) -> None:
        self._watch = Stopwatch(device)  # first: what is read below is charged to the runs
        self._data, self._hidden, self._tell, self._sharers, self._device = data, hidden, tell, sharers, device
        self._lm_head = None if data.lm_head is None else data.lm_head.on(device)
        self._draws: dict[int, TaskSplit] = {}
        for spec in specs:
            check_options(spec)
            for part in parts_of(spec).values():
                check_sides(part.head, data.train.sides)
            if spec.data_seed not in self._draws:
                self._draws[spec.data_seed] = training_split(spec, data)
        runs = [RunState(spec, layers_of(spec), self._draws[spec.data_seed]) for spec in specs]
        self.epochs = max(run.length.epochs for run in runs)
        self._layers: Layers = tuple(sorted({layer for run in runs for layer in run.layers}))
        self._reading = UnitInputs(specs, self._draws, self._layers, data, hidden, sharers, device, most_held)
        stored = self._reading.stored
        self._evaluator = Evaluator(data, stored, device) if Evaluator.can(data) and len(stored) else None
        self.groups = self._grouped(runs, starts)
        self._beside = Streams(device)

    def _grouped(self, runs: Sequence[RunState], starts: Mapping[str, TrainedRun]) -> list[_Group]:
        """Group runs of one shape into stacks; data seeds share a stack where their minibatches have one shape."""
        draws = self._draws.values()
        dense = all(draw.is_dense for draw in draws) and len({len(draw) for draw in draws}) == 1
        one_shape = dense or isinstance(self._reading.loader, GpuLoader)

        def stacked_by(run: RunState) -> tuple[Any, ...]:
            shared = one_shape and run.spec.class_weights == "none"  # balanced weights depend on the draw
            return shape_of(run.spec), None if shared else run.spec.data_seed

        ordered = sorted(runs, key=lambda run: (run.spec.data_seed, run.spec.lr, run.spec.weight_decay))
        made = [(alike, [self._model(run, starts) for run in alike]) for alike in grouped(ordered, stacked_by).values()]
        unit = [weight_bytes(model) for _, models in made for model in models]
        groups = list[_Group]()
        for alike, models in made:
            places = positions_of(alike[0].layers, self._layers)
            width = self._width(alike, models[0], unit)
            most_of_a_seed = max(Counter(run.spec.data_seed for run in alike).values())
            for at in stack_ranges(len(alike), width, most_of_a_seed):
                piece = [alike[k] for k in at]
                stack = stack_of([run.spec for run in piece], [models[k] for k in at])
                groups.append(_Group(stack, piece, places, len(groups)))
        return groups

    def _width(self, runs: Sequence[RunState], model: Model, unit: Sequence[int]) -> int:
        """How many of the runs are stacked; ``unit``: bytes of the weights of each run of the unit."""
        device = self._device
        # Of the largest minibatch, which has no more examples than the draw.
        size = runs[0].spec.batch_size
        rows = max(len(draw.rows) * min(1.0, size / max(len(draw), 1)) for draw in self._draws.values())
        states = round(4 * max(rows, block_rows(device)) * len(runs[0].layers) * self._hidden)
        free, on_cpu = room(device, self._sharers), device.type == "cpu"
        if free is not None and on_cpu:
            free -= self._reading.window_bytes  # windows lie in the host's memory
        widest, width = (width_of(weight_bytes(model), states, unit, spare, on_cpu) for spare in (None, free))
        if width < min(widest, len(runs)):
            self._tell(f"stacks of at most {counted(width, 'run')}: memory")
        return width

    def _model(self, run: RunState, starts: Mapping[str, TrainedRun]) -> Model:
        start = None if run.spec.init_from is None else starts[run.spec.init_from]
        return fresh_model(run, self._data, self._hidden, start, self._lm_head).to(self._device)

    def score_untrained(self, on_epoch: OnEpoch) -> Iterator[Ended]:
        """Score the runs that have nothing to learn, and yield their outcomes: the curve is empty, the best epoch 0."""
        runs = [run for group in self.groups if not group.stack.learns for run in group.runs]
        if not runs:
            return
        self.evaluate(set(runs), 0)
        self._charge(dict.fromkeys(runs, float(len(self._reading.stored.rows))))
        for run in runs:
            for _ in range(run.length.epochs):
                on_epoch(run.spec)
        yield from self._release(set(runs), {}, set())

    def train_epoch(self, epoch: int, on_epoch: OnEpoch, halving: Halving | None) -> Iterator[Ended]:
        """Train and score all runs for one epoch, from 1, and yield the outcomes of those that end with it."""
        self.train(epoch)
        runs = [run for group in self.groups for run in group.runs]
        failed = {run: diverged(run, epoch) for run in runs if not math.isfinite(run.loss)}
        sound = [run for run in runs if run not in failed]
        for run in sound:
            run.curve.append({"epoch": epoch, "loss": run.loss, "validation_score": None})
        self.evaluate({run for run in sound if run.is_due(epoch)}, epoch)
        gone = {*failed, *(run for run in sound if run.is_done(epoch))}
        stopped = halving.stopped(runs, failed, epoch) - gone if halving else set[RunState]()
        gone |= stopped
        watched = len(self._reading.stored.rows)
        trained = {run: len(run.draw.rows) * run.left(epoch) / run.length.epoch for run in runs}
        self._charge({run: rows + (watched if run.is_due(epoch) else 0) for run, rows in trained.items()})
        for run in runs:
            run.epoch_seconds.append(run.seconds)
            untrained = run.length.epochs - epoch if run in gone else 0  # epochs that will certainly not be trained
            for _ in range(1 + untrained):
                on_epoch(run.spec)
        yield from self._release(gone, failed, stopped)

    def train(self, epoch: int) -> None:
        """One epoch of all runs."""
        groups = self.groups
        seeds = list(dict.fromkeys(seed for group in groups for seed in group.seeds))
        totals = [torch.zeros(len(group.runs), device=self._device) for group in groups]  # [runs of the stack] each
        lefts = [[run.left(epoch) for run in group.runs] for group in groups]
        most = max(map(max, lefts))
        with denormals_as_zero(), full_float32(self._device):
            for step, batches in enumerate(islice(self._reading.loader.epoch(epoch, seeds), most)):
                with self._beside.joined([group.lane for group in groups]) as beside:
                    for group, total, left, own in zip(groups, totals, lefts, beside, strict=True):
                        with own, self._watch.of(group.runs):  # selecting layers may copy, in this stream
                            if step < max(left) and (mine := batches.of(group.seeds, group.places)):
                                total += self._step(group, mine, left, epoch, step)
        for group, total, left in zip(groups, totals, lefts, strict=True):
            for run, loss, steps in zip(group.runs, total.tolist(), left, strict=True):
                learned = min(steps * run.spec.batch_size, len(run.draw))
                run.loss = loss / max(learned, 1)

    def _step(self, group: _Group, batches: Sequence[Batch], left: Sequence[int], epoch: int, step: int) -> Tensor:
        """Take one step. ``left``: the steps of each run in this epoch.

        Returns:
            each run's loss times the examples of the minibatch; 0 for a run that makes no step.
        """
        going = [step < steps for steps in left]
        # A run that has made all of its steps waits for the others of its stack.
        rates = [run.rate(epoch, step) if goes else None for run, goes in zip(group.runs, going, strict=True)]
        examples = (len(batches[0].offsets) - 1) // self._data.train.sides
        losses = group.stack.step(batches, rates) * examples
        return losses if all(going) else losses.where(torch.tensor(going, device=self._device), 0.0)

    def evaluate(self, due: set[RunState], epoch: int) -> None:
        """Score these runs on validation, and keep each one's best epoch so far."""
        groups = [group for group in self.groups if not due.isdisjoint(group.runs)]
        if self._evaluator is None:
            for group in groups:
                for at, run in enumerate(group.runs):
                    if run in due:
                        with self._watch.of([run]):
                            self._score_by_name(group.stack, at, run, epoch)
        elif groups:  # with no run due, validation need not be read
            stacks = [StackedRuns(group.stack, group.places, group.runs) for group in groups]
            every = decide_all(stacks, self._reading.watched, self._reading.blocks(), self._watch)
            for group, decided in zip(groups, every, strict=True):
                with self._watch.of(group.runs):
                    values = self._evaluator.own(decided)
                for at, run in enumerate(group.runs):
                    if run in due and run.note_score(self._evaluator.metric, values[at], epoch):
                        run.best = BestEpoch(values[at], epoch, group.stack.weights(at), decided[at].clone())

    def _score_by_name(self, stack: Stack, at: int, run: RunState, epoch: int) -> None:
        """Score one run by the task's own scores; without validation examples the last epoch is the best."""
        scores = {"epoch": float(epoch)}
        if len(self._reading.stored):
            scores = score(stack.model(at), self._data, self._reading.stored, run.layers, choose=True)
        metric, value = next(iter(scores.items()))
        if run.note_score(metric, value, epoch):
            run.best = BestEpoch(value, epoch, stack.weights(at), scores=scores)

    def _charge(self, rows: Mapping[RunState, float]) -> None:
        """Add the time since the last charge to the runs' seconds; ``rows``: those that each run has read since."""
        for run, seconds in self._watch.read(rows).items():
            run.seconds += seconds

    def _release(
        self, gone: set[RunState], failed: Mapping[RunState, DivergenceError], stopped: set[RunState]
    ) -> Iterator[Ended]:
        """Take runs out of their stacks, score those that ended well, and yield the outcome of each."""
        ended = list[list[RunState]]()
        for group in self.groups:
            if gone.isdisjoint(group.runs):
                continue
            if well := [run for run in group.runs if run in gone and run not in failed and run not in stopped]:
                ended.append(well)
            for run in well:
                run.model = group.stack.model(group.runs.index(run))
            if stay := [k for k, run in enumerate(group.runs) if run not in gone]:
                group.stack.keep(stay)
            group.runs = [group.runs[k] for k in stay]
        self.groups = [group for group in self.groups if group.runs]
        yield from ((run.spec, error) for run, error in failed.items())
        yield from ((run.spec, run.stop()) for run in stopped)
        if ended:
            reading = self._reading
            held = reading.watched, self._layers if reading.holds_watched else None
            results = results_of(ended, self._data, reading.stored, held, self._evaluator, self._watch)
            yield from zip((run.spec for group in ended for run in group), results, strict=True)
        self._watch.begin()  # the caller's work on the results is charged to no run


def fresh_model(
    run: RunState, data: TaskData, hidden: int, start: TrainedRun | None = None, lm_head: LmHead | None = None
) -> Model:
    """A run's model with the weights that it starts from, ready to be trained on its draw.

    Args:
        lm_head: that of the data, where it is on a device already.
    """
    spec, labels = run.spec, {name: part.labels for name, part in data.parts.items()}
    classes = {name: len(known) for name, known in labels.items()}
    model = model_of(spec, len(run.layers), hidden, classes, data.sides, lm_head or data.lm_head)
    load_start_weights(model, spec, start, labels)
    for name, taught in run.draw.parts.items():
        part = model.parts[name]
        if isinstance(part.head, Softmax):
            part.head.label_smoothing = spec.label_smoothing
            if spec.class_weights == "balanced":
                part.head.class_weights = balanced_weights(taught.targets, classes[name])
    return model


def diverged(run: RunState, epoch: int) -> DivergenceError:
    """The error of a run whose loss is no longer finite."""
    own, rate = ("", "--lr") if run.spec.is_frozen else (f"{run.spec.method} + ", "--encoder-lr or --lr")
    return DivergenceError(
        f"the loss of {own}{run.spec.fusion} + {run.spec.head} is no longer finite in epoch {epoch}",
        received=str(run.loss),
        remedy=f"choose a smaller {rate}",
    )


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Numbers below 1e-38 count as 0: a softmax that is nearly one-hot makes many, and CPUs take long over each."""
    before = not float(torch.tensor(1e-39) * 1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
