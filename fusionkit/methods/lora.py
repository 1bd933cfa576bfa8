"""LoRA: ``W x + (α / r) B A x`` for the query's and the value's map ``W`` of each layer.

Symbols: ``W`` frozen, k → d; ``A``: k → r starts at random, ``B``: r → d at zero, so that the encoder starts as it was.
Source: Hu et al. (2022), by peft. Where one map gives query, key and value (ModernBERT, GPT-2), it is all of that map.

Options: ``alpha``, the scale ``α``; ``dropout`` on ``x`` in front of ``A``. ``layers=-6:`` has it in the last six
layers alone.
"""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached
from fusionkit.methods.peft_layers import QUERIES, VALUES, attach_peft, linear_names
from fusionkit.methods.structure import Structure, layer_span


class Lora:
    """Trains: A and B of query and value in each layer. Parameters: 4 L r d."""

    def __init__(self, *, r: int, alpha: int = 16, dropout: float = 0.0, layers: str = "all") -> None:
        if r < 1 or alpha < 1 or not 0 <= dropout < 1:
            raise UsageError(
                "there is no such LoRA",
                expected="lora:r with r and alpha at least 1, dropout from 0, below 1",
                received=f"lora:{r},alpha={alpha},dropout={dropout}",
                remedy="choose a rank, for example lora:8",
            )
        self.r, self.alpha, self.dropout, self.layers = r, alpha, dropout, layers

    def lowest_layer(self, depth: int) -> int:
        """The first of the layers that have it."""
        return layer_span(self.layers, depth, "lora")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for layers that are not there, an encoder whose maps have other names, or without peft."""
        span = structure.span(self.layers, "lora")
        names = linear_names(model, structure, span, "lora", QUERIES, VALUES)
        settings = {"r": self.r, "lora_alpha": self.alpha, "lora_dropout": self.dropout}
        return attach_peft(model, structure, span[0], "LoraConfig", target_modules=names, **settings)
