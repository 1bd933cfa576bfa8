"""BitFit: of ``W x + b`` and of a layer norm's ``g ⊙ x̂ + b`` only the biases ``b`` train.

Symbols: ``W``, ``g`` the frozen weights, ``x̂`` the normed input. The gradient of the bias of attention's keys is zero
by mathematics: it adds the same number to all scores of a softmax.
Source: Ben Zaken et al. (2022).

Options: ``embeddings=yes`` trains the biases in front of layer 1 too, that is of the embeddings' layer norm.
"""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure


class BitFit:
    """Trains: the biases of all layers, both layer norms included. Parameters: 11 L d."""

    def __init__(self, *, embeddings: bool = False) -> None:
        self.embeddings = embeddings

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for an encoder without biases."""
        lowest = 0 if self.embeddings else 1
        found = {
            name: parameter
            for name, (layer, parameter) in structure.parameters().items()
            if layer >= lowest and name.rpartition(".")[2].endswith("bias") and parameter.ndim == 1
        }
        if not found:
            raise UsageError(
                f"bitfit cannot be used with {type(model).__name__}",
                expected="an encoder whose layers have biases",
                received="no bias",
                remedy="choose another method, for example ia3 or houlsby:64",
            )
        return Attached(model, structure, trains(model, found), lowest_layer=lowest)
