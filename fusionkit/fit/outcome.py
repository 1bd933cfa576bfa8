"""What a run came to: its best epoch's weights scored on every split, and where its fusion looked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusionkit.devices import home_of
from fusionkit.errors import FusionkitError
from fusionkit.fit.data import TaskData, TaskSplit
from fusionkit.fit.feeding import Layers
from fusionkit.fit.model import FusedModel
from fusionkit.fit.predicting import Decisions, read_blocks, score
from fusionkit.fit.scoring import Judge, decide_all
from fusionkit.fit.splitting import Splitting
from fusionkit.fit.stacks import Model, stack_of
from fusionkit.specs import RunSpec

# A run's mean weight of each layer and mean largest weight of a row, where its fusion has weights.
Looked = tuple[list[float], float] | tuple[None, None]
Curve = list[dict[str, Any]]  # "epoch", "loss", "validation_score": float, or None where it was not scored


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        metric: the score's name. score: on test, None without one. validation_score: at the best epoch, on all of
            validation.
        best_epoch: from 1; 0 where there was nothing to train.
        scores: all metrics by split. curve: loss and validation score, an epoch each; None where it was not
            scored. watched: how many validation examples chose the epoch; the curve's scores are of these.
        seconds: training and scoring. epoch_seconds: how much of them had gone after each epoch of the curve: the one
            thing of an epoch that another machine gives otherwise, so it stands beside the curve.
        layer_weights: mean over validation rows, where the fusion has them.
        largest_weight: of a row's layer weights the largest, mean over the same rows: 1 is one-hot.
        temperature: what the fusion's scores are divided by, where it has scores.
        weights: the best epoch's parameters and buffers. draw: ids of a few-shot draw.
        trained_parameters: how many of the fusion's and the head's were not frozen.
        tests: the scores on each store's test split by its name, where there are several.
        slots: layer_weights and largest_weight over the rows that a joint run's slots read; above are its intents'.
    """

    metric: str
    score: float | None
    validation_score: float
    scores: dict[str, dict[str, float]]
    best_epoch: int
    curve: Curve
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
    slots: dict[str, Any] | None = None


class DivergenceError(FusionkitError):
    """A loss that is no longer finite: the run failed, the sweep goes on."""


@dataclass(frozen=True)
class Best:
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
class Trained:
    """A run that has ended well. ``seconds`` and ``epoch_seconds`` are its share of what the unit took."""

    spec: RunSpec
    model: Model
    best: Best
    curve: Curve
    seconds: float
    epoch_seconds: list[float]
    draw: TaskSplit


def outcomes_of(
    runs: Sequence[Trained], data: TaskData, watched: TaskSplit, layers: Layers, judge: Judge | None, began: float
) -> list[Outcome]:
    """Score runs of one shape by their best weights, all of them together.

    Args:
        watched: the part of validation that chose the epoch, or all of it. judge: of that, where the task has one.
        layers: positions among the stored layers that they read.
        began: when this began, by ``time.perf_counter``; each run has its share of the seconds.
    """
    for run in runs:
        run.model.load_state_dict(run.best.weights)
    if watched is data.validation:
        found = [_validation_scores(run, judge) for run in runs]
    else:
        found = _scored(runs, data, data.validation, layers)
    tested = None if data.test is None else _scored(runs, data, data.test, layers)
    others = {
        name: tested if split is data.test else _scored(runs, data, split, layers) for name, split in data.tests.items()
    }
    weights = _layer_weights(runs, data, layers)
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


def _validation_scores(run: Trained, judge: Judge | None) -> dict[str, float]:
    if judge is not None and run.best.decided is not None:
        return judge.scores(run.best.decided)
    assert run.best.scores is not None
    return run.best.scores


def _scored(runs: Sequence[Trained], data: TaskData, split: TaskSplit, layers: Layers) -> list[dict[str, float]]:
    if not Judge.can(data):
        return [score(run.model, data, split, layers) for run in runs]
    stack = Splitting(stack_of([run.spec for run in runs], [run.model for run in runs]), lambda width: None)
    judge = Judge(data, split)
    (decided,) = decide_all([(stack, tuple(range(len(layers))))], split, layers)
    return [judge.scores(each) for each in decided]


def _outcome(
    run: Trained,
    validation: dict[str, float],
    test: dict[str, float] | None,
    tests: dict[str, dict[str, float]],
    looked: Sequence[Looked],
    draw: list[str] | None,
    watched: int,
) -> Outcome:
    metric, model = next(iter(validation)), run.model
    (weights, largest), *others = looked
    return Outcome(
        metric=metric,
        score=None if test is None else test[metric],
        validation_score=validation[metric],
        scores={"validation": validation} | ({} if test is None else {"test": test}),
        best_epoch=run.best.epoch,
        curve=run.curve,
        seconds=run.seconds,
        epoch_seconds=run.epoch_seconds,
        fusion_parameters=model.parts[0].parameters_of(model.fusion),
        head_parameters=model.parts[0].parameters_of(model.head),
        layer_weights=weights,
        largest_weight=largest,
        temperature=getattr(model.parts[0].fusion, "temperature", None),
        draw=draw,
        weights={name: weights.cpu() for name, weights in run.best.weights.items()},
        slots={"layer_weights": others[0][0], "largest_weight": others[0][1]} if others else None,
        trained_parameters=sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
        tests=tests,
        watched=watched,
    )


def _layer_weights(runs: Sequence[Trained], data: TaskData, layers: Layers) -> list[list[Looked]]:
    """Of each run, by part, the weights over the validation rows, or over its own draw where there is no validation."""
    if not len(data.validation):
        return [_looked([run.model], run.draw, layers)[0] for run in runs]
    return _looked([run.model for run in runs], data.validation, layers)


def _looked(models: Sequence[Model], split: TaskSplit, layers: Layers) -> list[list[Looked]]:
    parts = [
        _mean_weights(alike, rows, layers)
        for *alike, rows in zip(*(model.parts for model in models), split.parts, strict=True)
    ]
    return [list(each) for each in zip(*parts, strict=True)]


@torch.inference_mode()
def _mean_weights(models: Sequence[FusedModel], split: TaskSplit, layers: Layers) -> list[Looked]:
    """Of each model the mean of each layer's weight over the rows that the head reads, and of each row's largest.

    The rows are read once for all of them.
    """
    total, largest, rows = torch.zeros(len(models), len(layers)), torch.zeros(len(models), dtype=torch.float64), 0
    for _, batch in read_blocks(split, layers, home_of(models[0])):
        states = batch.states if batch.read is None else batch.states[batch.read]
        for k, model in enumerate(models):
            weights = model.fusion.layer_weights(states)
            if weights is None:
                return [(None, None)] * len(models)
            total[k] += weights.sum(0).cpu()
            largest[k] += weights.amax(1).sum().cpu()
        rows += len(states)
    return list(zip((total / max(rows, 1)).tolist(), (largest / max(rows, 1)).tolist(), strict=True))
