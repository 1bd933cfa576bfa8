"""Full fine-tuning: ``θ ← θ − η ∇θ`` for every weight ``θ`` that the hidden states depend on.

A pooler gets no gradient and stays as it is. Source: Devlin et al. (2019).
"""

from __future__ import annotations

from typing import Any

from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure


class Full:
    """Trains: every weight of the encoder but a pooler's. Parameters: N."""

    def __init__(self) -> None:
        pass

    def attach(self, model: Any, structure: Structure) -> Attached:
        """All parameters in use train."""
        found = {name: parameter for name, (_, parameter) in structure.parameters().items()}
        return Attached(model, structure, trains(model, found), lowest_layer=0)
