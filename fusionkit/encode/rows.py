"""A padded batch's hidden states as rows: a row of one sub-token is its state, a row of several their mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fusionkit.encode.batches import PaddedBatch, PartInput
from fusionkit.encoder import Encoder
from fusionkit.ragged import IntArray, flat_rows, segment_mean


def forward(encoder: Encoder, batch: PaddedBatch) -> tuple[Tensor, ...]:
    """The batch through the encoder: L + 1 tensors ``[batch, length, hidden]``."""
    inputs = (batch.token_ids, batch.mask, batch.segments)
    return encoder.forward(*(tensor.to(encoder.device) for tensor in inputs))


def batch_rows(
    states: tuple[Tensor, ...],
    layers: Sequence[int],
    inputs: PartInput,
    batch: PaddedBatch,
    picked: IntArray,
    batch_index: IntArray,
) -> Iterator[tuple[int, Tensor]]:
    """The rows of one batch, layer by layer.

    Args:
        layers: those to keep; their order gives their positions (:mod:`fusionkit.store.layer_positions`).
        picked: int64 ``[n]``, rows of ``inputs`` that are not masked. batch_index: int64 ``[n]``, each
            row's example as an index into the batch.

    Yields:
        a layer's position and its rows ``[n, hidden]``.
    """
    # From a sub-token's place in the part to its place in the padded batch.
    starts = inputs.offsets[batch.examples[batch_index]]
    padded_index = inputs.rows.first[picked] - starts + batch_index * batch.mask.shape[1]
    spans = (inputs.rows.last - inputs.rows.first)[picked]
    device = states[0].device
    if bool((spans == 1).all()):
        source = torch.from_numpy(padded_index).to(device)
        for position, layer in enumerate(layers):
            # [batch, length, hidden] → [batch · length, hidden] → the rows wanted
            yield position, states[layer].flatten(0, 1).index_select(0, source)
        return
    # Each span's start and stop side by side are the offsets of the even pieces.
    bounds_of_spans = np.stack([padded_index, padded_index + spans], axis=1).ravel()
    source_rows, bounds = flat_rows(bounds_of_spans, 2 * np.arange(len(spans)))
    source, ends = torch.from_numpy(source_rows).to(device), torch.from_numpy(bounds).to(device)
    for position, layer in enumerate(layers):
        yield position, segment_mean(states[layer].flatten(0, 1).index_select(0, source).float(), ends)
