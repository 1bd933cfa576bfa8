"""The result of a run: its best epoch's weights, the scores on every split, and the layer weights of its fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import FusionkitError
from fusionkit.fit.loader.minibatches import Layers
from fusionkit.fit.model.fused import FusedModel, parameters_of, threshold_of
from fusionkit.fit.model.joint import Model
from fusionkit.fit.train.decisions import Decisions, Judged, choose_thresholds, decide, judged, score_blocks
from fusionkit.fit.train.evaluate import Evaluator, StackedRuns, decide_all
from fusionkit.fit.train.layer_weights import MeanWeights, mean_weights
from fusionkit.fit.train.schedule import Length, length_of, rate_factor
from fusionkit.fit.train.stopwatch import Stopwatch
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.metrics import is_better
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import RunAnswers
from fusionkit.store.layer_positions import positions_of

Curve = list[dict[str, Any]]  # "epoch", "loss", "validation_score": float, or None where it was not scored


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        metric: the score's name. score: on test, None without one. validation_score: of the best epoch, on all of
            validation. scores: all metrics by split. best_epoch: from 1; 0 where there was nothing to train.
        steps: the number that the optimizer made. seconds: training and scoring. epoch_seconds: the seconds up to the
            end of each epoch; kept beside the curve, because they differ between machines.
        layer_weights: mean over validation rows, where the fusion has them. largest_weight: the mean over the same rows
            of a row's largest layer weight; 1 is one-hot. temperature: the number by which the fusion divides its
            scores.
        draw: ids of a few-shot draw. weights: the best epoch's parameters and buffers. trained_parameters: the number
            that is not frozen. tests: the scores on each store's test split by its name, where there are several.
        watched: the number of validation examples that chose the epoch; the curve's scores are on these.
        threshold: the probability above which an example has a class, where it may have several.
        delta: what a method trained of the encoder, at the best epoch. costs: the costs of a run that trained through
            the encoder, measured on the run itself.
        answers: what is kept of the answers on each store's test split, by the names of ``tests``; ``""`` for a single
            one.
        others: layer_weights, largest_weight and threshold of a run's other tasks by name, and their draws where each
            task has its own examples; the attributes above are those of the first task.
        sampled: the steps of each task in each epoch, by task name, where tasks have their own stores.
    """

    metric: str
    score: float | None
    validation_score: float
    scores: dict[str, dict[str, float]]
    best_epoch: int
    curve: Curve
    steps: int
    seconds: float
    epoch_seconds: list[float]
    fusion_parameters: int
    head_parameters: int
    layer_weights: list[float] | None
    largest_weight: float | None
    temperature: float | None
    draw: list[str] | None
    weights: dict[str, Tensor] = field(repr=False)
    trained_parameters: int
    tests: dict[str, dict[str, float]]
    watched: int
    threshold: float | None = None
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    sampled: dict[str, list[int]] | None = None
    delta: dict[str, Tensor] = field(default_factory=dict, repr=False)
    costs: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, RunAnswers] = field(default_factory=dict, repr=False)


class DivergenceError(FusionkitError):
    """A loss that is no longer finite: the run failed, the sweep goes on."""


@dataclass(frozen=True)
class StoppedRun:
    """The progress of a run that was stopped because others were better; attributes as of :class:`RunResult`."""

    metric: str
    validation_score: float
    best_epoch: int
    curve: Curve
    steps: int
    seconds: float
    epoch_seconds: list[float]


@dataclass(frozen=True)
class BestEpoch:
    """A run's best epoch: its validation score, and the decisions on the validation examples that chose it."""

    value: float
    epoch: int
    weights: dict[str, Tensor]
    decided: Decisions | None = None
    scores: dict[str, float] | None = None


@dataclass(eq=False)
class RunState:
    """A run from its start to its result.

    Attributes:
        layers: the positions of its layers among the stored ones. draw: its training examples. length: its length if
            nothing stops it earlier. loss: mean of its last epoch. metric: the name of the score that chooses its
            epoch. seconds, epoch_seconds: its share of the unit's time. model: set once the run has ended.
    """

    spec: RunSpec
    layers: Layers
    draw: TaskSplit
    length: Length = field(init=False)
    loss: float = 0.0
    metric: str = ""
    curve: Curve = field(default_factory=list)
    best: BestEpoch | None = None
    seconds: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.length = length_of(self.spec, sum(map(len, self.draw.streams)))

    def is_due(self, epoch: int) -> bool:
        """Whether the run is scored after this epoch, whatever the other runs of its stack do."""
        return epoch % self.spec.validate_every == 0 or epoch == self.length.epochs

    def is_done(self, epoch: int) -> bool:
        """Whether the run has had all of its epochs, or its best is ``patience`` epochs old when an epoch is scored."""
        if epoch >= self.length.epochs:
            return True
        if self.spec.patience is None or self.best is None or not self.is_due(epoch):
            return False
        return epoch - self.best.epoch >= self.spec.patience

    @property
    def steps(self) -> int:
        """The number of steps that the run has made."""
        return min(len(self.curve) * self.length.epoch, self.length.steps)

    def stop(self) -> StoppedRun:
        """The result of a run that stops before its end."""
        best = self.chosen
        return StoppedRun(self.metric, best.value, best.epoch, self.curve, self.steps, self.seconds, self.epoch_seconds)

    def left(self, epoch: int) -> int:
        """The steps that the run makes in an epoch: the last epoch may be incomplete."""
        return min(self.length.steps - (epoch - 1) * self.length.epoch, self.length.epoch)

    def rate(self, epoch: int, step: int) -> float:
        """The rate of a step of an epoch."""
        return self.spec.lr * rate_factor(self.spec, (epoch - 1) * self.length.epoch + step, self.length.steps)

    def note_score(self, metric: str, value: float, epoch: int) -> bool:
        """Put the validation score of an epoch into the curve; True where it is the best so far."""
        self.metric = metric
        if epoch:
            self.curve[-1]["validation_score"] = value
        return self.best is None or is_better(metric, value, self.best.value)

    @property
    def first(self) -> FusedModel:
        """The model of its first task, or its only one."""
        return next(iter(self.model.parts.values()))

    @property
    def chosen(self) -> BestEpoch:
        """The best epoch of a run that has ended."""
        assert self.best is not None  # the last epoch is scored
        return self.best


Groups = Sequence[Sequence[RunState]]  # runs that have ended, those of one shape together


def results_of(
    groups: Groups,
    data: TaskData,
    watched: TaskSplit,
    held: tuple[TaskSplit, Layers | None],
    evaluator: Evaluator | None,
    watch: Stopwatch,
) -> list[RunResult]:
    """One result per run, group by group, from its best weights. Each split is read once for all runs that ended
    together.

    Args:
        watched: the part of validation that chose the epoch, or all of it. held: the split to read it from, and the
            stored layers that this holds in memory, None where it is read from the store. evaluator: that of
            ``watched``.
    """
    runs = [run for group in groups for run in group]
    for run in runs:
        run.model.load_state_dict(run.chosen.weights)
        _settle_thresholds(run, data, watched)
    scored = watched is not data.validation or bool(data.scored_tests)
    stacks = _stacks(groups) if scored and Evaluator.can(data) else []
    if watched is data.validation:
        validation = [_validation_scores(run, evaluator) for run in runs]
    else:
        found = _scored(groups, stacks, data, data.validation, watch)
        validation, held = [each.scores for each in found], (data.validation, None)
    tests = {name: _scored(groups, stacks, data, split, watch) for name, split in data.scored_tests.items()}
    test = next(iter(tests.values()), None)  # of several, the first is `data.test`
    if len(data.validation):
        weights = _layer_weights(groups, *held)
    else:
        weights = [_layer_weights([[run]], run.draw)[0] for run in runs]
    for run, seconds in watch.read(dict.fromkeys(runs, 1.0)).items():
        run.seconds += seconds
    results = []
    for k, run in enumerate(runs):
        metric = next(iter(validation[k]))
        scores = {"validation": validation[k]} | ({} if test is None else {"test": test[k].scores})
        seen: dict[str, dict[str, Any]] = {}
        for name, (mean, largest) in weights[k].items():
            threshold = threshold_of(run.model.parts[name])
            seen[name] = {"layer_weights": mean, "largest_weight": largest, "threshold": threshold}
            if name and run.draw.apart and run.draw is not data.train and name != run.draw.name:
                seen[name]["draw"] = run.draw.parts[name].ids
        results.append(
            RunResult(
                metric=metric,
                score=None if test is None else test[k].scores[metric],
                validation_score=validation[k][metric],
                scores=scores,
                best_epoch=run.chosen.epoch,
                curve=run.curve,
                steps=run.steps,
                seconds=run.seconds,
                epoch_seconds=run.epoch_seconds,
                fusion_parameters=parameters_of(run.model.fusion),
                head_parameters=parameters_of(run.model.head),
                **seen.pop(next(iter(seen))),
                temperature=getattr(run.first.fusion, "temperature", None),
                draw=None if run.draw is data.train else run.draw.ids,
                weights={name: tensor.cpu() for name, tensor in run.chosen.weights.items()},
                others=seen,
                trained_parameters=parameters_of(run.model, trained=True),
                tests={name: tests[name][k].scores for name in data.tests},
                watched=sum(map(len, watched.streams)),
                answers={name: kept for name, found in tests.items() if (kept := found[k].answers) is not None},
            )
        )
    return results


def _settle_thresholds(run: RunState, data: TaskData, watched: TaskSplit) -> None:
    """Choose a run's thresholds, where it has any, on all of validation, and keep them with its weights."""
    whole = data.validation
    if not len(whole) or all(threshold_of(part) is None for part in run.model.parts.values()):
        return
    known = run.chosen.decided if watched is whole else None
    decided = {data.name: known} if known is not None else decide(run.model, data, whole, run.layers)
    choose_thresholds(run.model, whole, decided)
    own = run.model.state_dict()
    run.chosen.weights.update({name: own[name].clone() for name in own if name.split(".")[-1] == "threshold"})


def _validation_scores(run: RunState, evaluator: Evaluator | None) -> dict[str, float]:
    if evaluator is not None and run.chosen.decided is not None:
        return evaluator.scores(run.chosen.decided.unsqueeze(0), [threshold_of(run.first)])[0]
    assert run.chosen.scores is not None
    return run.chosen.scores


def _stacks(groups: Groups) -> list[StackedRuns]:
    """The stack of each group, with the positions of its layers among those that any of the runs reads."""
    return [
        StackedRuns(stack_of([run.spec for run in group], [run.model for run in group]), places, group)
        for group, places in zip(groups, _among(groups)[1], strict=True)
    ]


def _scored(
    groups: Groups, stacks: Sequence[StackedRuns], data: TaskData, split: TaskSplit, watch: Stopwatch
) -> list[Judged]:
    """The scores of each run on a split, and what is kept of its answers; without stacks each run is scored alone."""
    found = list[Judged]()
    if not stacks:
        for run in (run for group in groups for run in group):
            with watch.of([run]):
                found.append(judged(run.model, data, split, run.layers))
        return found
    layers, device = _among(groups)[0], stacks[0].stack.device
    evaluator = Evaluator(data, split, device)
    every = decide_all(stacks, split, score_blocks(split, layers, device), watch)
    for group, decided in zip(groups, every, strict=True):
        thresholds = [threshold_of(run.first) for run in group]
        found += [Judged(each.scores(), each) for each in evaluator.kept(decided, thresholds)]
    return found


def _among(groups: Groups) -> tuple[Layers, list[Layers]]:
    """The layers that any of the runs reads, and the positions of each group's layers among them."""
    layers = tuple(sorted({layer for group in groups for layer in group[0].layers}))
    return layers, [positions_of(group[0].layers, layers) for group in groups]


def _layer_weights(groups: Groups, split: TaskSplit, held: Layers | None = None) -> list[dict[str, MeanWeights]]:
    """The mean layer weights over a split's rows for each run, by part; ``held`` as :func:`results_of` has it."""
    layers, places = _among(groups)
    runs = [(run.model.parts, own) for group, own in zip(groups, places, strict=True) for run in group]
    read = layers if held is None else positions_of(layers, held)
    by_part = [
        mean_weights([(models[name], own) for models, own in runs], part, read) for name, part in split.parts.items()
    ]
    return [dict(zip(split.parts, each, strict=True)) for each in zip(*by_part, strict=True)]
