"""Training one run: minibatches in the order of its ``data_seed``, best epoch by validation, test once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.draws import epoch_order
from fusionkit.errors import FusionkitError
from fusionkit.fit.choices import check_sides
from fusionkit.fit.data import TaskData, TaskSplit
from fusionkit.fit.drawing import draw_of, watched_split
from fusionkit.fit.joint import JointModel, model_of
from fusionkit.fit.masked import masked_predictions
from fusionkit.fit.model import FusedModel
from fusionkit.fit.options import balanced_weights, check_options, optimizer_of, rate_factor
from fusionkit.fit.starting import Start, begin
from fusionkit.heads.softmax import Softmax
from fusionkit.metrics import is_better
from fusionkit.ragged import IntArray
from fusionkit.specs import RunSpec

Model = FusedModel | JointModel
EVAL_ROWS = 4096  # rows scored at once; bounds memory, changes no number


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        metric: the score's name. score: on test, None without one. validation_score: at the best epoch, on all of
            validation.
        best_epoch: from 1; 0 where there was nothing to train.
        scores: all metrics by split. curve: loss and validation score, an epoch each. watched: how many validation
            examples chose the epoch; the curve's scores are of these.
        seconds: training and scoring. layer_weights: mean over validation rows, where the fusion has them.
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
    curve: list[dict[str, float]]
    seconds: float
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


def train_run(
    spec: RunSpec,
    data: TaskData,
    layers: tuple[int, ...],
    hidden: int,
    on_epoch: Callable[[], None],
    start: Start | None = None,
) -> Outcome:
    """Train one head; where nothing is left to train, only score it.

    Args:
        layers: positions among the stored layers that the fusion reads.
        on_epoch: called for each epoch of the spec: once it is trained, or once it is sure that it will not be.
        start: the trained run to begin from.

    Raises:
        DivergenceError: the loss became infinite or NaN. UsageError: the draw is larger than the training split,
            or the head cannot use an option or the number of sequences an example has.
    """
    check_options(spec)
    check_sides(spec.head, data.train.sides)
    drawn, watched = draw_of(spec, data), watched_split(spec, data)
    train = data.train if drawn is None else data.train.subset(drawn)
    classes = [len(part.labels) for part in data.parts]
    model = model_of(spec, len(layers), hidden, classes, train.sides, data.lm_head)
    if isinstance(model, FusedModel):
        begin(model, spec, start, data.labels)
    for part, taught, told in zip(model.parts, train.parts, data.parts, strict=True):
        if isinstance(part.head, Softmax):
            part.head.label_smoothing = spec.label_smoothing
            if spec.class_weights == "balanced":
                part.head.class_weights = balanced_weights(taught.targets, len(told.labels))
    learned = [weights for weights in model.parameters() if weights.requires_grad]
    epochs = spec.epochs if learned else 0  # `last` under a frozen head is scored as it is
    optimizer = optimizer_of(spec, learned or [torch.nn.Parameter(torch.zeros(0))])  # PyTorch refuses an empty list
    began = time.perf_counter()  # not before: a process's first optimizer loads more of torch, for two seconds
    steps = spec.epochs * -(-len(train) // spec.batch_size)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(spec, step, steps))
    curve: list[dict[str, float]] = []
    best: tuple[float, int, dict[str, Tensor], dict[str, float]] | None = None
    scores: dict[str, dict[str, float]] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.init_seed)  # dropout's stream
        if not epochs:
            judged = score(model, data, watched, layers)
            best = (next(iter(judged.values())), 0, dict(model.state_dict()), judged)
        for epoch in range(1, epochs + 1):
            loss = _train_epoch(model, optimizer, rate, train, layers, spec, epoch)
            # Without examples to judge by, the last epoch is the best.
            judged = score(model, data, watched, layers) if len(watched) else {"epoch": float(epoch)}
            value = next(iter(judged.values()))
            curve.append({"epoch": epoch, "loss": loss, "validation_score": value})
            if best is None or is_better(next(iter(judged)), value, best[0]):
                best = (value, epoch, {k: v.detach().clone() for k, v in model.state_dict().items()}, judged)
            on_epoch()
            if spec.patience is not None and epoch - best[1] >= spec.patience:
                break
    for _ in range(spec.epochs - len(curve)):
        on_epoch()
    assert best is not None
    model.load_state_dict(best[2])
    scores["validation"] = best[3] if watched is data.validation else score(model, data, data.validation, layers)
    if data.test is not None:
        scores["test"] = score(model, data, data.test, layers)
    tests = {
        name: scores["test"] if split is data.test else score(model, data, split, layers)
        for name, split in data.tests.items()
    }
    metric = next(iter(best[3]))
    (weights, largest), *others = (
        _mean_layer_weights(part, judged_on, layers)
        for part, judged_on in zip(model.parts, (data.validation if len(data.validation) else train).parts, strict=True)
    )
    return Outcome(
        metric=metric,
        score=scores["test"][metric] if "test" in scores else None,
        validation_score=scores["validation"][metric],
        scores=scores,
        best_epoch=best[1],
        curve=curve,
        seconds=time.perf_counter() - began,
        fusion_parameters=model.parts[0].parameters_of(model.fusion),
        head_parameters=model.parts[0].parameters_of(model.head),
        layer_weights=weights,
        largest_weight=largest,
        temperature=getattr(model.parts[0].fusion, "temperature", None),
        draw=None if drawn is None else train.ids,
        weights=best[2],
        slots={"layer_weights": others[0][0], "largest_weight": others[0][1]} if others else None,
        trained_parameters=sum(weights.numel() for weights in learned),
        tests=tests,
        watched=len(watched),
    )


def score(model: Model, data: TaskData, split: TaskSplit, layers: tuple[int, ...]) -> dict[str, float]:
    """The task's scores of a model on a split; its own metric comes first."""
    found = predict(model, data, split, layers)
    if split.slots is None or data.slots is None:
        return data.task.scores(split.gold, found, data.labels)
    return data.task.scores(list(zip(split.gold, split.slots.gold, strict=True)), found, data.slots.labels)


def predict(model: Model, data: TaskData, split: TaskSplit, layers: tuple[int, ...]) -> list[Any]:
    """A label or number an example, or a list of tags an example; words without a row get the default tag.

    A joint run decides both: ``(label, tags)`` an example. Of a masked sub-token, its cross-entropy and the likeliest
    id.
    """
    if data.lm_head is not None and isinstance(model, FusedModel):
        return masked_predictions(model, split, data.lm_head, layers)
    decided: list[Any] = [None] * len(split)
    model.eval()
    with torch.inference_mode():
        for examples in _blocks(split):
            batch = split.batch(examples, layers)
            answers = [
                _named(names, labelled, examples, read.read_offsets.numpy(), classes.numpy())
                for names, labelled, read, classes in zip(
                    data.parts, split.parts, batch.parts, model.decide(batch), strict=True
                )
            ]
            for example, *found in zip(examples, *answers, strict=True):
                decided[example] = found[0] if split.slots is None else tuple(found)
    return decided


def _named(
    data: TaskData, split: TaskSplit, examples: IntArray, bounds: IntArray, classes: NDArray[np.generic]
) -> list[Any]:
    """What decided classes mean, an answer an example; ``bounds`` are those of the examples among the classes."""
    if split.kept is None or split.word_offsets is None:
        return [float(k) if data.task.numeric else data.labels[k] for k in classes]
    named = []
    for at, example in enumerate(examples):
        kept = split.kept[split.word_offsets[example] : split.word_offsets[example + 1]]
        tags = np.full(len(kept), data.default, dtype=object)
        tags[kept] = [data.labels[k] for k in classes[bounds[at] : bounds[at + 1]]]
        named.append(tags.tolist())
    return named


@contextmanager
def _denormals_as_zero() -> Iterator[None]:
    """Numbers below 1e-38 count as 0: a softmax that is nearly one-hot makes many, and CPUs take long over each."""
    before = not float(torch.tensor(1e-39) * 1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@_denormals_as_zero()
def _train_epoch(
    model: Model,
    optimizer: torch.optim.Optimizer,
    rate: torch.optim.lr_scheduler.LambdaLR,
    train: TaskSplit,
    layers: tuple[int, ...],
    spec: RunSpec,
    epoch: int,
) -> float:
    model.train()
    order = epoch_order(len(train), spec.data_seed, epoch)
    total = torch.zeros(())
    for start in range(0, len(order), spec.batch_size):
        examples = order[start : start + spec.batch_size]
        batch = train.batch(examples, layers)
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
        optimizer.step()
        rate.step()
        total += loss.detach() * len(examples)
    mean = float(total) / max(len(order), 1)
    if not np.isfinite(mean):
        raise DivergenceError(
            f"the loss of {spec.fusion} + {spec.head} is no longer finite in epoch {epoch}",
            received=str(mean),
            remedy="choose a smaller --lr",
        )
    return mean


def _blocks(split: TaskSplit) -> list[IntArray]:
    """All examples in blocks of similar length and about :data:`EVAL_ROWS` rows: little padding for a CRF."""
    lengths = np.diff(split.offsets[:: split.sides])
    order = np.argsort(lengths, kind="stable")
    rows = np.cumsum(lengths[order])
    cuts = np.flatnonzero(np.diff(rows // EVAL_ROWS)) + 1
    return [block for block in np.split(order, cuts) if len(block)]


@torch.inference_mode()
def _mean_layer_weights(
    model: FusedModel, split: TaskSplit, layers: tuple[int, ...]
) -> tuple[list[float], float] | tuple[None, None]:
    """The mean of each layer's weight over the rows that the head reads, and of each row's largest weight."""
    total, largest, rows = torch.zeros(len(layers)), 0.0, 0
    for examples in _blocks(split):
        batch = split.batch(examples, layers)
        weights = model.fusion.layer_weights(batch.states if batch.read is None else batch.states[batch.read])
        if weights is None:
            return None, None
        total, rows = total + weights.sum(0), rows + len(weights)
        largest += float(weights.amax(1).sum())
    return (total / max(rows, 1)).tolist(), largest / max(rows, 1)
