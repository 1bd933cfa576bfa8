"""What a run came to: its best epoch's weights scored on every split, and where its fusion looked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import FusionkitError
from fusionkit.fit.loader.minibatches import Layers
from fusionkit.fit.model.fused import FusedModel, threshold_of
from fusionkit.fit.model.joint import Model
from fusionkit.fit.train.decisions import Decisions, choose_thresholds, decide, score, score_blocks
from fusionkit.fit.train.evaluate import Evaluator, decide_all
from fusionkit.fit.train.layer_weights import MeanWeights, mean_weights
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.specs import RunSpec
from fusionkit.store.layer_positions import positions_of

Shown = tuple[TaskSplit, Layers | None]  # a split, and the stored layers of it that are held in memory; None is none
Curve = list[dict[str, Any]]  # "epoch", "loss", "validation_score": float, or None where it was not scored


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        metric: the score's name. score: on test, None without one. validation_score: at the best epoch, on all of
            validation.
        best_epoch: from 1; 0 where there was nothing to train.
        scores: all metrics by split. curve: loss and validation score, an epoch each; None where it was not
            scored. watched: how many validation examples chose the epoch; the curve's scores are of these.
        steps: how many the optimizer made.
        seconds: training and scoring. epoch_seconds: how much of them had gone after each epoch of the curve: the one
            thing of an epoch that another machine gives otherwise, so it stands beside the curve.
        layer_weights: mean over validation rows, where the fusion has them.
        largest_weight: of a row's layer weights the largest, mean over the same rows: 1 is one-hot.
        temperature: what the fusion's scores are divided by, where it has scores.
        weights: the best epoch's parameters and buffers. draw: ids of a few-shot draw.
        trained_parameters: how many of the fusion's and the head's were not frozen.
        tests: the scores on each store's test split by its name, where there are several.
        threshold: the probability above which an example has a class, where it may have several.
        others: layer_weights, largest_weight and threshold of a run's other tasks by their names; above are the first
            one's.
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


class DivergenceError(FusionkitError):
    """A loss that is no longer finite: the run failed, the sweep goes on."""


@dataclass(frozen=True)
class BestEpoch:
    """A run's best epoch.

    Attributes:
        value: its validation score. decided: what it decided of the examples it was judged by, where that was asked.
        scores: all scores of these, where they are known.
    """

    value: float
    epoch: int
    weights: dict[str, Tensor]
    decided: Decisions | None = None
    scores: dict[str, float] | None = None


@dataclass(eq=False)
class CompletedRun:
    """A run that has ended well.

    Attributes:
        layers: positions among the stored layers that it reads. seconds, epoch_seconds: its share of what the unit
            took.
    """

    spec: RunSpec
    model: Model
    layers: Layers
    best: BestEpoch
    curve: Curve
    steps: int
    seconds: float
    epoch_seconds: list[float]
    draw: TaskSplit

    @property
    def first(self) -> FusedModel:
        """The model of its first task, or its only one."""
        return next(iter(self.model.parts.values()))


def results_of(
    groups: Sequence[Sequence[CompletedRun]],
    data: TaskData,
    watched: TaskSplit,
    shown: Shown,
    evaluator: Evaluator | None,
    began: float,
) -> list[RunResult]:
    """Score runs by their best weights, all that have ended together: each split is read once for all of them.

    Args:
        groups: runs of one shape in each. watched: the part of validation that chose the epoch, or all of it.
        shown: how that is read. evaluator: of that, where the task has one.
        began: when this began, by ``time.perf_counter``; each run has its share of the seconds.

    Returns:
        an outcome a run, group by group.
    """
    runs = [run for group in groups for run in group]
    for run in runs:
        run.model.load_state_dict(run.best.weights)
    for run in runs:
        _settle_thresholds(run, data, watched)
    if watched is data.validation:
        found = [_validation_scores(run, evaluator) for run in runs]
    else:
        found = _scored(groups, data, data.validation)
    tested = None if data.test is None else _scored(groups, data, data.test)
    others = {
        name: tested if split is data.test else _scored(groups, data, split) for name, split in data.tests.items()
    }
    weights = _layer_weights(groups, data, shown if watched is data.validation else (data.validation, None))
    for run in runs:
        run.seconds += (time.perf_counter() - began) / len(runs)
    return [
        _outcome(
            run,
            found[k],
            None if tested is None else tested[k],
            {name: scores[k] for name, scores in others.items() if scores is not None},
            weights[k],
            None if run.draw is data.train else run.draw.ids,
            len(watched),
        )
        for k, run in enumerate(runs)
    ]


def _settle_thresholds(run: CompletedRun, data: TaskData, watched: TaskSplit) -> None:
    """Choose a run's thresholds, where it has any, on all of validation; they are kept with its weights."""
    whole = data.validation
    if not len(whole) or all(threshold_of(part) is None for part in run.model.parts.values()):
        return
    known = run.best.decided if watched is whole else None
    decided = {data.name: known} if known is not None else decide(run.model, data, whole, run.layers)
    choose_thresholds(run.model, whole, decided)
    own = run.model.state_dict()
    run.best.weights.update({name: own[name].clone() for name in own if name.split(".")[-1] == "threshold"})


def _validation_scores(run: CompletedRun, evaluator: Evaluator | None) -> dict[str, float]:
    if evaluator is not None and run.best.decided is not None:
        return evaluator.scores(run.best.decided.unsqueeze(0), [threshold_of(run.first)])[0]
    assert run.best.scores is not None
    return run.best.scores


def _scored(groups: Sequence[Sequence[CompletedRun]], data: TaskData, split: TaskSplit) -> list[dict[str, float]]:
    if not Evaluator.can(data):
        return [score(run.model, data, split, run.layers) for group in groups for run in group]
    layers, places = _among(groups)
    stacks = [
        (stack_of([run.spec for run in group], [run.model for run in group]), place)
        for group, place in zip(groups, places, strict=True)
    ]
    device = stacks[0][0].device
    evaluator = Evaluator(data, split, device)
    thresholds = [[threshold_of(run.first) for run in group] for group in groups]
    decided = decide_all(stacks, split, score_blocks(split, layers, device))
    return [scores for some, own in zip(decided, thresholds, strict=True) for scores in evaluator.scores(some, own)]


def _among(groups: Sequence[Sequence[CompletedRun]]) -> tuple[Layers, list[Layers]]:
    """The layers that any of the runs reads, and where each group's stand among them."""
    layers = tuple(sorted({layer for group in groups for layer in group[0].layers}))
    return layers, [positions_of(group[0].layers, layers) for group in groups]


def _outcome(
    run: CompletedRun,
    validation: dict[str, float],
    test: dict[str, float] | None,
    tests: dict[str, dict[str, float]],
    looked: Mapping[str, MeanWeights],
    draw: list[str] | None,
    watched: int,
) -> RunResult:
    metric, model = next(iter(validation)), run.model
    seen: dict[str, dict[str, Any]] = {
        name: {
            "layer_weights": weights,
            "largest_weight": largest,
            "threshold": threshold_of(model.parts[name]),
        }
        for name, (weights, largest) in looked.items()
    }
    return RunResult(
        metric=metric,
        score=None if test is None else test[metric],
        validation_score=validation[metric],
        scores={"validation": validation} | ({} if test is None else {"test": test}),
        best_epoch=run.best.epoch,
        curve=run.curve,
        steps=run.steps,
        seconds=run.seconds,
        epoch_seconds=run.epoch_seconds,
        fusion_parameters=run.first.parameters_of(model.fusion),
        head_parameters=run.first.parameters_of(model.head),
        **seen.pop(next(iter(looked))),
        temperature=getattr(run.first.fusion, "temperature", None),
        draw=draw,
        weights={name: weights.cpu() for name, weights in run.best.weights.items()},
        others=seen,
        trained_parameters=sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
        tests=tests,
        watched=watched,
    )


def _layer_weights(
    groups: Sequence[Sequence[CompletedRun]], data: TaskData, validation: Shown
) -> list[dict[str, MeanWeights]]:
    """Of each run, by part, the weights over the validation rows, or over its own draw where there is no validation."""
    if len(data.validation):
        return _looked(groups, *validation)
    return [_looked([[run]], run.draw, None)[0] for group in groups for run in group]


def _looked(
    groups: Sequence[Sequence[CompletedRun]], split: TaskSplit, held: Layers | None
) -> list[dict[str, MeanWeights]]:
    """Of each run, by part, the weights over a split's rows.

    Args:
        held: the stored layers that the split holds in memory; None where it is read from the store.
    """
    layers, places = _among(groups)
    if held is not None:
        layers, places = tuple(range(len(held))), [tuple(map(held.index, group[0].layers)) for group in groups]
    runs = [(run.model.parts, own) for group, own in zip(groups, places, strict=True) for run in group]
    by_part = [
        mean_weights([(models[name], own) for models, own in runs], part, layers) for name, part in split.parts.items()
    ]
    return [dict(zip(split.parts, each, strict=True)) for each in zip(*by_part, strict=True)]
