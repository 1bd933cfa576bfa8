"""The encoder as it is: only the fusion and the head train."""

from __future__ import annotations

from typing import Any

from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure


class Frozen:
    """Trains: nothing of the encoder. Parameters: none."""

    def __init__(self) -> None:
        pass

    def lowest_layer(self, depth: int) -> int:
        """``L + 1``: above all layers."""
        return depth + 1

    def attach(self, model: Any, structure: Structure) -> Attached:
        """Nothing trains, so nothing needs a gradient."""
        return Attached(model, structure, trains(model, {}), lowest_layer=structure.depth + 1)
