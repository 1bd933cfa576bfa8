"""Passes of an encoder over padded batches of a store's sequences: from the sub-tokens, or from a stored layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.split import States
from fusionkit.encode.batches import padded_index
from fusionkit.encoder import Encoder
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.tuning.tokens import Tokens
from fusionkit.tuning.upper_layers import UpperLayers


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class FromText:
    """Passes of an encoder over sequences of sub-tokens; ``before`` is called before each."""

    encoder: Encoder
    tokens: Tokens
    before: Callable[[], None] = _nothing

    def __call__(self, sequences: IntArray, layers: Sequence[int]) -> Mapping[int, Tensor]:
        """The states of all layers."""
        self.before()
        return dict(enumerate(self.encoder.states(*padded(self.tokens, sequences, self.encoder)[1:])))


@dataclass(frozen=True, eq=False)
class FromLayer:
    """Passes of an encoder's upper layers over the stored states of the layer below them.

    Attributes:
        stored: the states of the same rows as the tokens. layers: those that are stored, by position. before: called
            before each pass.
    """

    upper: UpperLayers
    encoder: Encoder
    tokens: Tokens
    stored: States
    layers: Sequence[int]
    before: Callable[[], None] = _nothing

    def read(self, layers: Sequence[int]) -> list[int]:
        """The layers that must be read from the store where ``layers`` are wanted."""
        return sorted({self.upper.start, *(layer for layer in layers if layer <= self.upper.start)})

    def __call__(self, sequences: IntArray, layers: Sequence[int]) -> Mapping[int, Tensor]:
        """The states of layer k, of those above it and of the wanted ones below it."""
        self.before()
        inside, *inputs = padded(self.tokens, sequences, self.encoder)
        rows, _ = flat_rows(self.tokens.offsets, sequences)
        read = self.read(layers)
        found = self.stored.gather(rows, [self.layers.index(layer) for layer in read]).to(inside.device)
        below: dict[int, Tensor] = {}
        for at, layer in enumerate(read):
            below[layer] = found.new_zeros(*inside.shape, found.shape[2], dtype=torch.float32)
            below[layer][inside] = found[:, at].float()  # [n, length, hidden]
        states = self.upper.states(below[self.upper.start], *inputs)
        return below | {layer: states[layer] for layer in range(self.upper.start + 1, len(states))}


def padded(tokens: Tokens, sequences: IntArray, encoder: Encoder) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where a padded batch has sub-tokens, bool ``[n, length]``; and the encoder's inputs: ids, mask and segments."""
    inside, source = padded_index(tokens.offsets, sequences, int(tokens.padded_lengths(sequences).max()))
    ids = np.where(inside, tokens.token_ids[source], encoder.pad_id)
    segments = np.where(inside, tokens.segments[source], 0)
    mask, *inputs = (torch.from_numpy(each).to(encoder.device) for each in (inside, ids, segments))
    return mask, inputs[0].long(), mask.long(), inputs[1].long()
