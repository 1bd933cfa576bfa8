"""Passes of an encoder over padded batches of a store's sequences: from the sub-tokens, or from a stored layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.split import States
from fusionkit.encoder import Encoder
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.tuning.tokens import Tokens
from fusionkit.tuning.upper_layers import UpperLayers


def _nothing() -> None:
    pass


class FromText:
    """Passes of an encoder over sequences of sub-tokens; ``before`` is called before each."""

    def __init__(self, encoder: Encoder, tokens: Tokens, before: Callable[[], None] = _nothing) -> None:
        self.encoder, self.tokens, self._before = encoder, tokens, before

    def __call__(self, sequences: IntArray, layers: Sequence[int]) -> Mapping[int, Tensor]:
        """The states of all layers."""
        self._before()
        return dict(enumerate(self.encoder.states(*padded(self.tokens, sequences, self.encoder)[1:])))


class FromLayer:
    """Passes of an encoder's upper layers over the stored states of the layer below them.

    Args:
        stored: the states of the same rows as the tokens. layers: those that are stored, by position. before: called
            before each pass.
    """

    def __init__(
        self,
        upper: UpperLayers,
        encoder: Encoder,
        tokens: Tokens,
        stored: States,
        layers: Sequence[int],
        before: Callable[[], None] = _nothing,
    ) -> None:
        self.upper, self.encoder, self.tokens, self.stored = upper, encoder, tokens, stored
        self.layers, self.before = tuple(layers), before

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
    starts = tokens.offsets[sequences]
    lengths = tokens.offsets[sequences + 1] - starts
    steps = np.arange(int(lengths.max()))
    inside = steps < lengths[:, None]  # [n, length]
    source = np.where(inside, starts[:, None] + steps, 0)
    ids = np.where(inside, tokens.token_ids[source], encoder.pad_id)
    segments = np.where(inside, tokens.segments[source], 0)
    mask, *inputs = (torch.from_numpy(each).to(encoder.device) for each in (inside, ids, segments))
    return mask, inputs[0].long(), mask.long(), inputs[1].long()
