"""BitFit: of ``W x + b`` and of a layer norm's ``g ⊙ x̂ + b`` only the biases ``b`` train.

Symbols: ``W``, ``g`` the frozen weights, ``x̂`` the normed input. The gradient of the bias of attention's keys is zero
by mathematics: it adds the same number to all scores of a softmax.
Source: Ben Zaken et al. (2022).

Options: ``embeddings=yes`` trains the biases before layer 1 too, which are those of the embeddings' layer norm.
``layers=-6:`` trains only those of the last six layers and of what follows the last.
"""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure, layer_span


class BitFit:
    """Trains: the biases of all layers, both layer norms included. Parameters: 11 L d."""

    def __init__(self, *, embeddings: bool = False, layers: str = "all") -> None:
        self.embeddings, self.layers = embeddings, layers

    def lowest_layer(self, depth: int) -> int:
        """The first layer whose biases train; 0 where those of the embeddings train."""
        return 0 if self.embeddings else layer_span(self.layers, depth, "bitfit")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for an encoder without biases, or layers that are not there."""
        span = structure.span(self.layers, "bitfit")
        wanted = {*span, *([0] if self.embeddings else [])}
        wanted |= {structure.depth + 1} if len(structure.layers) in span else set()
        found = {
            name: parameter
            for name, (layer, parameter) in structure.parameters().items()
            if layer in wanted and name.rpartition(".")[2].endswith("bias") and parameter.ndim == 1
        }
        if not found:
            raise UsageError(
                f"bitfit cannot be used with {type(model).__name__}",
                expected="an encoder whose layers have biases",
                received="no bias",
                remedy="choose another method, for example ia3 or houlsby:64",
            )
        return Attached(model, structure, trains(model, found), self.lowest_layer(structure.depth))
