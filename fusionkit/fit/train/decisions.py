"""What a model says of a split: decided class numbers, block by block, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch, SharedBuffer
from fusionkit.dataset.split import ChunkedStates, TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.devices import CPU, home_of
from fusionkit.fit.loader.minibatches import Layers, held_bytes
from fusionkit.fit.loader.sampler import begin_chunks
from fusionkit.fit.loader.streaming import WindowReader
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import Model
from fusionkit.fit.train.masked_predictions import masked_predictions
from fusionkit.fit.vectorized.bfloat16_decisions import GPU_LEAST_ROWS
from fusionkit.ragged import IntArray, flat_rows

BLOCK_ROWS = 1024  # rows that are scored at once: few enough for a core's cache; changes no number
GPU_BLOCK_ROWS = 16384  # a GPU has to be filled, and pays for each call
STREAMED_BYTES = 256 << 20  # of float32, in a split that is scored from the store
Decisions = Tensor  # class numbers or numbers ``[units]``, or ``[R, units]`` of many runs


def block_rows(device: torch.device) -> int:
    """How many rows a device scores at once."""
    return BLOCK_ROWS if device.type == "cpu" else GPU_BLOCK_ROWS


def blocks(split: TaskSplit, rows: int = BLOCK_ROWS) -> list[IntArray]:
    """All examples in blocks of similar length and about so many rows: little padding for a CRF."""
    return blocks_of(np.diff(split.offsets[:: split.sides]), rows)


def blocks_of(lengths: IntArray, rows: int = BLOCK_ROWS) -> list[IntArray]:
    """The places of things so long ``[n]`` in such blocks."""
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // rows)) + 1
    return [block for block in np.split(order, cuts) if len(block)]


def read_blocks(split: TaskSplit, layers: Layers, device: torch.device = CPU) -> Iterator[tuple[IntArray, Batch]]:
    """All examples block by block, as :func:`blocks` has them, with their rows on the device.

    A split larger than :data:`STREAMED_BYTES` is read in the order of the store, a chunk at a time.
    """
    if not isinstance(split.states, ChunkedStates) or held_bytes(split, layers) <= STREAMED_BYTES:
        for examples in blocks(split, block_rows(device)):
            yield examples, split.batch(examples, layers).on(device)
        return
    stream, chunks, lengths = WindowReader(split, layers), begin_chunks(split), np.diff(split.offsets[:: split.sides])
    for window, here in stream.windows([np.flatnonzero(chunks == chunk) for chunk in np.unique(chunks)]):
        for among in blocks_of(lengths[window], block_rows(device)):
            examples = window[among]
            yield examples, split.batch(examples, layers, stream.states(examples, here)).on(device)


@dataclass(frozen=True)
class ScoreBlock:
    """Some examples of a split, to be scored at once.

    Attributes:
        units: int64 ``[n]``, where those that are decided, the examples or their words, stand among all of the split.
        narrow: the states in bfloat16, where a GPU decides in it first.
    """

    units: Tensor
    batch: Batch
    narrow: Tensor | None


def score_blocks(split: TaskSplit, layers: Layers, device: torch.device = CPU) -> Iterator[ScoreBlock]:
    """A split as :func:`read_blocks` has it; blocks that are kept may be read again where they lie."""
    for examples, batch in read_blocks(split, layers, device):
        units = torch.from_numpy(units_of(split, examples)).to(device)
        pays = device.type == "cuda" and len(batch.states) >= GPU_LEAST_ROWS
        narrow = batch.states.bfloat16() if pays else None
        yield ScoreBlock(units, replace(batch, place=SharedBuffer()), narrow)


def units_of(split: TaskSplit, examples: IntArray) -> IntArray:
    """Where the units of some examples, themselves or their words, stand among all that are decided."""
    return examples if split.kept is None else flat_rows(split.read_offsets, split.sequences(examples))[0]


def named(data: TaskData, split: TaskSplit, decided: Decisions) -> list[Any]:
    """A label or number an example, or a list of tags an example; words without a row get the default tag.

    Args:
        decided: ``[units]``.
    """
    if split.kept is None or split.word_offsets is None:
        return [float(k) if data.task.numeric else data.labels[k] for k in decided.tolist()]
    every = np.full(len(split.kept), data.default, dtype=object)
    every[split.kept] = np.array(data.labels, dtype=object)[decided.cpu().numpy()]
    tags, bounds = every.tolist(), split.word_offsets.tolist()
    return [tags[start:stop] for start, stop in pairwise(bounds)]


def predict(model: Model, data: TaskData, split: TaskSplit, layers: Layers) -> list[Any]:
    """A model's answers, an example each, as :func:`named` has them.

    A joint run decides both: ``(label, tags)`` an example. Of a masked sub-token, its cross-entropy and the likeliest
    id.
    """
    if data.lm_head is not None and isinstance(model, FusedModel):
        return masked_predictions(model, split, data.lm_head, layers)
    kinds = [torch.float32 if told.task.numeric else torch.int64 for told in data.parts]
    decided = [torch.empty(len(part.targets), dtype=kind) for part, kind in zip(split.parts, kinds, strict=True)]
    model.eval()
    with torch.inference_mode():
        for examples, batch in read_blocks(split, layers, home_of(model)):
            found = model.decide(batch)
            for every, part, classes in zip(decided, split.parts, found, strict=True):
                every[torch.from_numpy(units_of(part, examples))] = classes.cpu()
    answers = [named(*each) for each in zip(data.parts, split.parts, decided, strict=True)]
    return answers[0] if split.slots is None else list(zip(*answers, strict=True))


def score(model: Model, data: TaskData, split: TaskSplit, layers: Layers) -> dict[str, float]:
    """The task's scores of a model on a split; its own metric comes first."""
    found = predict(model, data, split, layers)
    if split.slots is None or data.slots is None:
        return data.task.scores(split.gold, found, data.labels)
    return data.task.scores(list(zip(split.gold, split.slots.gold, strict=True)), found, data.slots.labels)
