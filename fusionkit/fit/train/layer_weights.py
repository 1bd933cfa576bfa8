"""The layer weights of trained fusions over the rows of a split: each row's own, and their means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.loader.minibatches import Layers, layers_of
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.precision import full_float32
from fusionkit.fit.train.decisions import read_blocks
from fusionkit.machine.devices import home_of
from fusionkit.ragged import IntArray, flat_rows

# The mean weight of each layer and the mean over the rows of the largest weight; None where a fusion has no weights.
MeanWeights = tuple[list[float], float] | tuple[None, None]


def row_weights(model: FusedModel, split: TaskSplit, layers: Layers) -> NDArray[np.float32] | None:
    """Each layer's weight at every row that the head reads, ``[rows read, layers]``; None where a fusion has none."""
    found: NDArray[np.float32] | None = None
    for examples, (weights,) in _block_weights([(model, tuple(range(len(layers))))], split, layers):
        if weights is None:
            return None
        if found is None:
            found = np.zeros((int(split.read_offsets[-1]), weights.shape[1]), dtype=np.float32)
        at, _ = flat_rows(split.read_offsets, split.sequences(examples))
        found[at] = weights.cpu().numpy()
    return found


def mean_weights(models: Sequence[tuple[FusedModel, Layers]], split: TaskSplit, layers: Layers) -> list[MeanWeights]:
    """The means of :func:`row_weights` of each model; a model comes with its layers' positions among ``layers``."""
    sums, largest = [torch.zeros(len(places)) for _, places in models], [0.0] * len(models)
    has_weights = [True] * len(models)
    for _, found in _block_weights(models, split, layers):
        has_weights = [weights is not None for weights in found]
        if not any(has_weights):
            break
        for k, weights in enumerate(found):
            if weights is not None:
                sums[k] += weights.sum(0).cpu()
                largest[k] += float(weights.amax(1).sum())
    rows = max(int(split.read_offsets[-1]), 1)
    return [
        ((total / rows).tolist(), most / rows) if has else (None, None)
        for total, most, has in zip(sums, largest, has_weights, strict=True)
    ]


@torch.inference_mode()
def _block_weights(
    models: Sequence[tuple[FusedModel, Layers]], split: TaskSplit, layers: Layers
) -> Iterator[tuple[IntArray, list[Tensor | None]]]:
    """For each block its examples, and each model's weights ``[rows, layers]`` at the rows that its head reads."""
    weights_of = [getattr(model.fusion, "layer_weights", lambda states: None) for model, _ in models]
    home = home_of(models[0][0])
    for examples, batch in read_blocks(split, layers, home):
        states = batch.states if batch.read is None else batch.states[batch.read]
        chosen = {places: layers_of(states, places) for places in {places for _, places in models}}
        with full_float32(home):
            found = [weights(chosen[places]) for weights, (_, places) in zip(weights_of, models, strict=True)]
        yield examples, found
