"""Low-rank layers: ``TS(h) = V^D gelu(V^E h)``, added at the second layer norm of each layer.

Symbols: ``h`` the layer's input, ``d`` its width; ``V^E``: d → h and ``V^D``: h → d, one pair a layer. ``V^D`` starts
at zero, so that the encoder starts as it was; ``V^E`` starts at N(0, 0.02²).
Source: Stickland and Murray (2019). The text has the identity for gelu; this is the authors' code.

Options: ``layers=-6:`` adds these parts to the last six layers only. ``biases=no`` leaves biases out, as the paper
counts. ``encoder=frozen`` trains only these parts; by default the shared encoder trains with them.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached
from fusionkit.methods.pals import start
from fusionkit.methods.structure import Structure, layer_span
from fusionkit.methods.task_specific import attach_functions


class LowRank:
    """Trains: the low-rank layers and the encoder. Parameters: N + L (2 d h + h + d)."""

    def __init__(
        self,
        *,
        h: int,
        layers: str = "all",
        biases: bool = True,
        encoder: Literal["trained", "frozen"] = "trained",
    ) -> None:
        if h < 1:
            raise UsageError(
                "there are no such low-rank layers",
                expected="low-rank:h with h at least 1",
                received=f"low-rank:{h}",
                remedy="choose a width, for example low-rank:100",
            )
        self.h, self.layers, self.biases, self.encoder = h, layers, biases, encoder

    def lowest_layer(self, depth: int) -> int:
        """The first layer of the span; 0 where the encoder trains too."""
        return 0 if self.encoder == "trained" else layer_span(self.layers, depth, "low-rank")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for layers that are not there, or an encoder whose places cannot be found."""
        span = structure.span(self.layers, "low-rank")
        d = structure.hidden
        encode = nn.ModuleList(nn.Linear(d, self.h, bias=self.biases) for _ in span)
        decode = nn.ModuleList(nn.Linear(self.h, d, bias=self.biases) for _ in span)
        parts = nn.ModuleDict({"encode": encode, "decode": decode})
        start(parts, decode)
        functions = {layer: _function(*pair) for layer, *pair in zip(span, encode, decode, strict=True)}
        return attach_functions(model, structure, parts, functions, self.encoder == "trained")


def _function(encode: nn.Module, decode: nn.Module) -> Any:
    return lambda h, real: decode(functional.gelu(encode(h)))
