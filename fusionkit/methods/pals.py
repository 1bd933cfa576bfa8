"""Projected attention layers: ``TS(h) = gelu(V^D g(V^E h))``, added at the second layer norm of each layer.

    g(x) = [softmax(Q_k x · K_k x / √w) V_k x]_k

Symbols: ``h`` the layer's input, ``d`` its width; ``V^E``: d → h and ``V^D``: h → d, the same in all layers; ``g``
attention of width h over the example's sub-tokens, with heads ``k`` of width ``w`` and no output matrix, one ``g`` per
layer. ``V^D`` starts at zero, so that the encoder starts as it was; the others start at N(0, 0.02²).
Source: Stickland and Murray (2019); the gelu, the places and the biases are those of the authors' code.

Options: ``heads``, the number of heads of ``g``. ``share=no`` gives each layer its own ``V^E`` and ``V^D``.
``layers=-6:`` adds these parts to the last six layers only. ``biases=no`` leaves biases out, as the paper counts.
``encoder=frozen`` trains only these parts; by default the shared encoder trains with them.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached
from fusionkit.methods.structure import Structure, layer_span
from fusionkit.methods.task_specific import attach_functions
from fusionkit.plural import counted

STD = 0.02


class ProjectedAttention(nn.Module):
    """``g``. Parameters: 3 h² + 3 h."""

    def __init__(self, h: int, heads: int, biases: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(h, h, bias=biases) for _ in range(3))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """``[batch, length, h]``, real sub-tokens ``[batch, length]`` → ``[batch, length, h]``."""
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mask = None if real is None else real[:, None, None, :].bool()  # [batch, 1, 1, length]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [batch, heads, length, w]
        return mixed.transpose(1, 2).flatten(2)


class Pals:
    """Trains: the projected attention layers and the encoder. Parameters: N + 2 d h + h + d + L (3 h² + 3 h)."""

    def __init__(
        self,
        *,
        h: int,
        heads: int = 6,
        share: Literal["all", "no"] = "all",
        layers: str = "all",
        biases: bool = True,
        encoder: Literal["trained", "frozen"] = "trained",
    ) -> None:
        if h < 1 or heads < 1 or h % heads:
            raise UsageError(
                "there are no such projected attention layers",
                expected="pals:h with h a multiple of its heads",
                received=f"pals:{h} with {counted(heads, 'head')}",
                remedy="choose a width like 204, or heads=",
            )
        self.h, self.heads, self.biases = h, heads, biases
        self.share, self.layers, self.encoder = share, layers, encoder

    def lowest_layer(self, depth: int) -> int:
        """The first layer of the span; 0 where the encoder trains too."""
        return 0 if self.encoder == "trained" else layer_span(self.layers, depth, "pals")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for layers that are not there, or an encoder whose places cannot be found."""
        span = structure.span(self.layers, "pals")
        d, apart = structure.hidden, len(span) if self.share == "no" else 1
        parts = nn.ModuleDict(
            {
                "encode": nn.ModuleList(nn.Linear(d, self.h, bias=self.biases) for _ in range(apart)),
                "attention": nn.ModuleList(ProjectedAttention(self.h, self.heads, self.biases) for _ in span),
                "decode": nn.ModuleList(nn.Linear(self.h, d, bias=self.biases) for _ in range(apart)),
            }
        )
        start(parts, parts["decode"])
        functions = {
            layer: _function(
                parts["encode"][k % apart],  # type: ignore[index]
                parts["attention"][k],  # type: ignore[index]
                parts["decode"][k % apart],  # type: ignore[index]
            )
            for k, layer in enumerate(span)
        }
        return attach_functions(model, structure, parts, functions, self.encoder == "trained")


def _function(encode: nn.Module, attention: nn.Module, decode: nn.Module) -> Any:
    return lambda h, real: functional.gelu(decode(attention(encode(h), real)))


def start(parts: nn.Module, zero: nn.Module) -> None:
    """Weights at N(0, 0.02²), biases and all of ``zero`` at 0."""
    silent = set(zero.parameters())
    with torch.no_grad():
        for parameter in parts.parameters():
            if parameter in silent or parameter.ndim == 1:
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=STD)
