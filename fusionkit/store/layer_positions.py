"""Layers and positions: the two numbers of a layer.

    layer      index of a hidden state, as in transformers' ``hidden_states``: 0 is the embedding output, L the last
    position   index on the layer axis of an array that holds some of the layers: 0 is the first one held

In a store of the layers 0, 6 and 12, layer 12 has position 2. An encoder returns all hidden states, so there a layer's
position is the layer itself; a truncated encoder lacks only the last layers, so the same holds for it.

A ``layers`` argument of functions that read arrays of states (``take``, ``gather``, ``load``, training) holds
positions. Everything that a user reads or writes, and every manifest and run, holds layers.
"""

from __future__ import annotations

from collections.abc import Sequence


def positions_of(layers: Sequence[int], held: Sequence[int]) -> tuple[int, ...]:
    """The position of each layer in an array that holds the layers ``held``.

    An array may hold some positions of a larger array: then both arguments are positions in the larger one.

    Raises:
        ValueError: the array does not hold one of them.
    """
    known = list(held)
    if missing := [layer for layer in layers if layer not in known]:
        raise ValueError(f"layers {missing} are not among those held, {known}")
    return tuple(known.index(layer) for layer in layers)
