"""Partial fine-tuning: the weights of layers ``L − m + 1 … L`` train, and those of a norm behind layer ``L``.

Source: the baseline of Houlsby et al. (2019), section 3.4, and of Peters et al. (2019).
"""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, trains
from fusionkit.methods.structure import Structure
from fusionkit.plural import counted


class Top:
    """Trains: the last m layers and what follows them. Parameters: m (12 d² + 13 d)."""

    def __init__(self, *, m: int) -> None:
        if m < 1:
            raise UsageError(
                "there are no such top layers",
                expected="top:m with m at least 1",
                received=f"top:{m}",
                remedy="choose --method frozen for none",
            )
        self.m = m

    def lowest_layer(self, depth: int) -> int:
        """``L − m + 1``; UsageError for an encoder that has fewer than m layers."""
        if self.m > depth:
            raise UsageError(
                f"the encoder has fewer than {counted(self.m, 'layer')}",
                expected=f"top:m with m from 1 to {depth}",
                received=f"top:{self.m}",
                remedy="choose fewer, or --method full",
            )
        return depth - self.m + 1

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for an encoder whose layers are one module, or that has fewer than m layers."""
        structure.refuse_one_layer(f"top:{self.m}")
        lowest = self.lowest_layer(structure.depth)
        found = {name: parameter for name, (layer, parameter) in structure.parameters().items() if layer >= lowest}
        return Attached(model, structure, trains(model, found), lowest_layer=lowest)
