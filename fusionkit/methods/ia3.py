"""(IA)³: keys ``l_k ⊙ K x``, values ``l_v ⊙ V x``, and ``W_down (l_ff ⊙ u)`` in the feed-forward network.

Symbols: ``l`` trained vectors that start at one, so that the encoder starts as it was; ``K``, ``V``, ``W_down`` frozen;
``u`` the input of the feed-forward network's last map.
Source: Liu et al. (2022, T-Few), by peft. Where one map gives query, key and value (ModernBERT, GPT-2), queries are
scaled too.

Options: ``layers=-6:`` adds the vectors to the last six layers only.
"""

from __future__ import annotations

from typing import Any

from fusionkit.methods.attached import Attached
from fusionkit.methods.peft_layers import KEYS, VALUES, attach_peft, down_names, linear_names
from fusionkit.methods.structure import Structure, layer_span


class Ia3:
    """Trains: three vectors in each layer. Parameters: L (2 d + f)."""

    def __init__(self, *, layers: str = "all") -> None:
        self.layers = layers

    def lowest_layer(self, depth: int) -> int:
        """The first of the layers that have them."""
        return layer_span(self.layers, depth, "ia3")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for layers that are not there, an encoder whose maps have other names, or without peft."""
        span = structure.span(self.layers, "ia3")
        down = down_names(model, structure, span)
        names = [*linear_names(model, structure, span, "ia3", KEYS, VALUES), *down]
        found = attach_peft(model, structure, span[0], "IA3Config", target_modules=names, feedforward_modules=down)
        found.undecayed = tuple(found.trainable)  # vectors of neutral value 1, which peft has as matrices of one column
        return found
