"""A model's decisions on a split: class numbers, block by block, and the labels that these mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fusionkit.dataset.batch import Batch, SharedBuffer
from fusionkit.dataset.split import ChunkedStates, TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.loader.minibatches import Layers, held_bytes
from fusionkit.fit.loader.sampler import begin_chunks
from fusionkit.fit.loader.streaming import WindowReader
from fusionkit.fit.model.fused import FusedModel, threshold_of
from fusionkit.fit.model.joint import Model
from fusionkit.fit.model.precision import full_float32
from fusionkit.fit.train.code_length import code_scores
from fusionkit.fit.train.f1 import best_threshold
from fusionkit.fit.vectorized.bfloat16_decisions import GPU_LEAST_ROWS, LEAST_ROWS
from fusionkit.heads.sigmoid_classifier import Sigmoid
from fusionkit.lm_head import LmHead
from fusionkit.machine.bfloat16 import has_bfloat16
from fusionkit.machine.devices import CPU, home_of
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.statistics.kept_answers import RunAnswers, answers_of, run_answers

BLOCK_ROWS = 1024  # rows that are scored at once: few enough for a core's cache; changes no number
GPU_BLOCK_ROWS = 16384  # a GPU has to be filled, and pays for each call
SCORE_BYTES = 64 << 20  # of the scores over a vocabulary that are computed at once
STREAMED_BYTES = 256 << 20  # of float32: a larger split in a store is read a chunk at a time
Decisions = Tensor  # class numbers, numbers or probabilities, ``[units, …]``; of many runs ``[R, units, …]``


class ScoreBlock(NamedTuple):
    """Examples that are scored at once.

    Attributes:
        places: int64 ``[n]``, the places of their units (the examples or their words) among all units of the split.
        narrow: the states of ``batch`` in bfloat16, where decisions are made in bfloat16 first; else None.
    """

    places: Tensor
    batch: Batch
    narrow: Tensor | None


class Judged(NamedTuple):
    """The scores of a model on a split, its task's own metric first, and the kept answers; None where none are kept."""

    scores: dict[str, float]
    answers: RunAnswers | None


def block_rows(device: torch.device) -> int:
    """The number of rows that a device scores at once."""
    return BLOCK_ROWS if device.type == "cpu" else GPU_BLOCK_ROWS


def blocks(split: TaskSplit, device: torch.device, among: IntArray | None = None) -> list[IntArray]:
    """Some or all examples in blocks of similar length, which means little padding for a CRF, for this device."""
    among = np.arange(len(split)) if among is None else among
    lengths = np.diff(split.offsets[:: split.sides])[among]
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // block_rows(device))) + 1
    return [block for block in np.split(among[order], cuts) if len(block)]


def read_blocks(split: TaskSplit, layers: Layers, device: torch.device = CPU) -> Iterator[tuple[IntArray, Batch]]:
    """All examples block by block, as :func:`blocks` has them, with their rows on the device.

    A split larger than :data:`STREAMED_BYTES` is read in the order of the store, a chunk at a time.
    """
    if not isinstance(split.states, ChunkedStates) or held_bytes(split, layers) <= STREAMED_BYTES:
        for examples in blocks(split, device):
            yield examples, split.batch(examples, layers).on(device)
        return
    stream, chunks = WindowReader(split, layers), begin_chunks(split)
    for window, here in stream.windows([np.flatnonzero(chunks == chunk) for chunk in np.unique(chunks)]):
        for examples in blocks(split, device, window):
            yield examples, split.batch(examples, layers, stream.states(examples, here)).on(device)


def score_blocks(split: TaskSplit, layers: Layers, device: torch.device = CPU) -> Iterator[ScoreBlock]:
    """The blocks of :func:`read_blocks`, ready to be scored; a block that is kept may be scored again in place."""
    on_cpu = device.type == "cpu" and has_bfloat16() and len(split.targets) >= LEAST_ROWS
    for examples, batch in read_blocks(split, layers, device):
        places = torch.from_numpy(units_of(split, examples)).to(device)
        pays = on_cpu or (device.type == "cuda" and len(batch.states) >= GPU_LEAST_ROWS)
        narrow = batch.states.bfloat16() if pays else None
        sequences = split.sequences(examples)
        longest = int((split.offsets[sequences + 1] - split.offsets[sequences]).max(initial=0))
        yield ScoreBlock(places, replace(batch, place=SharedBuffer(), longest=longest), narrow)


def units_of(split: TaskSplit, examples: IntArray) -> IntArray:
    """The places of the units of some examples (the examples themselves, or their words) among all units."""
    return examples if split.kept is None else flat_rows(split.read_offsets, split.sequences(examples))[0]


def named(data: TaskData, split: TaskSplit, decided: Decisions, threshold: float | None = None) -> list[Any]:
    """One answer per example: a label, a number, or a list of tags, where words without a row get the default tag. From
    probabilities ``[examples, classes]`` each example gets the list of its labels above the threshold.
    """
    if data.task.several:
        assert threshold is not None
        return [
            [name for name, own in zip(data.labels, each, strict=True) if own]
            for each in (decided > threshold).tolist()
        ]
    if split.kept is None or split.word_offsets is None:
        return [float(k) if data.task.numeric else data.labels[k] for k in decided.tolist()]
    every = np.full(len(split.kept), data.default, dtype=object)
    every[split.kept] = np.array(data.labels, dtype=object)[decided.cpu().numpy()]
    tags, bounds = every.tolist(), split.word_offsets.tolist()
    return [tags[start:stop] for start, stop in pairwise(bounds)]


def predict(model: Model, data: TaskData, split: TaskSplit, layers: Layers) -> list[Any]:
    """A model's answers for the first task, one per example: :func:`named`, or :func:`masked_predictions`."""
    return predict_parts(model, data, split, layers)[data.name]


def predict_parts(
    model: Model, data: TaskData, split: TaskSplit, layers: Layers, choose: bool = False
) -> dict[str, list[Any]]:
    """A model's answers for each task by its name; with ``choose`` its thresholds are chosen on this split first."""
    if data.lm_head is not None and isinstance(model, FusedModel):
        return {data.name: masked_predictions(model, split, data.lm_head, layers)}
    decided = decide(model, data, split, layers)
    if choose:
        choose_thresholds(model, split, decided)
    return {
        name: named(part, split.parts[name], decided[name], threshold_of(model.parts[name]))
        for name, part in data.parts.items()
    }


def masked_predictions(
    model: FusedModel, split: TaskSplit, head: LmHead, layers: Layers
) -> list[list[tuple[float, int]]]:
    """For each masked sub-token of each text the cross-entropy of its own id, in nats, and the likeliest id.

    A row has a score for each sub-token of the vocabulary, so few rows are scored at once.
    """
    at_once, count = max(1, SCORE_BYTES // (4 * head.vocabulary)), len(split.targets)
    nats, best = torch.empty(count), torch.empty(count, dtype=torch.int64)
    model.eval()
    home = home_of(model)
    with torch.inference_mode(), full_float32(home):
        for examples, batch in read_blocks(split, layers, home):
            places, fused = torch.from_numpy(units_of(split, examples)), model.fusion(batch.states, batch.offsets)
            fused = fused if batch.read is None else fused.index_select(0, batch.read)
            for start in range(0, len(places), at_once):
                some = slice(start, start + at_once)
                scores = model.head(fused[some], batch.read_offsets)  # [rows, V], each row alone
                nats[places[some]] = functional.cross_entropy(scores, batch.targets[some], reduction="none").cpu()
                best[places[some]] = scores.argmax(1).cpu()
    each = [*zip(nats.tolist(), best.tolist(), strict=True)]
    return [each[start:stop] for start, stop in pairwise(split.read_offsets.tolist())]


def decide(model: Model, data: TaskData, split: TaskSplit, layers: Layers) -> dict[str, Decisions]:
    """A model's decision on every unit of a split, by task."""
    decided = {
        name: torch.empty(part.targets.shape, dtype=torch.float32 if part.targets.dtype == np.float32 else torch.int64)
        for name, part in split.parts.items()
    }
    model.eval()
    home = home_of(model)
    with torch.inference_mode(), full_float32(home):
        for examples, batch in chain.from_iterable(read_blocks(each, layers, home) for each in split.streams):
            for name, found in model.decide(batch).items():
                decided[name][torch.from_numpy(units_of(split.parts[name], examples))] = found.cpu()
    return decided


def choose_thresholds(model: Model, split: TaskSplit, decided: Mapping[str, Decisions]) -> None:
    """Set the threshold of each head that has one to the best on this split."""
    for name, part in model.parts.items():
        if isinstance(part.head, Sigmoid):
            told = split.parts[name]
            part.head.threshold.fill_(best_threshold(told.targets, told.gold, decided[name])[0])


def score(model: Model, data: TaskData, split: TaskSplit, layers: Layers, choose: bool = False) -> dict[str, float]:
    """The task's scores of a model on a split; its own metric comes first. ``choose`` as in :func:`predict_parts`. For
    an online code they are the lengths of the split's code.
    """
    return judged(model, data, split, layers, choose).scores


def judged(model: Model, data: TaskData, split: TaskSplit, layers: Layers, choose: bool = False) -> Judged:
    """:func:`score`, and what is kept of the answers; nothing for an online code."""
    if data.coding is not None and isinstance(model, FusedModel):
        batches = (batch for _, batch in read_blocks(split, layers, home_of(model)))
        return Judged(code_scores(model, batches, data.coding, split is data.test), None)
    found = predict_parts(model, data, split, layers, choose)
    answers = {
        name: answers_of(part.task, split.parts[name].gold, found[name], part.labels)
        for name, part in data.parts.items()
    }
    kept = run_answers(answers, data.apart)
    return Judged(kept.scores(), kept)
