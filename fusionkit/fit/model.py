"""Fusion, pool and head as one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.fusions import build_fusion
from fusionkit.heads import build_head
from fusionkit.ragged import segment_max, segment_mean
from fusionkit.specs import RunSpec


class FusedModel(nn.Module):
    """States of all layers → scores: the layer axis is fused first, tokens are pooled after (the papers' order).

    Args:
        layers: how many layers the fusion reads. hidden: their width. classes: how many there are.
    """

    def __init__(self, spec: RunSpec, layers: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.fusion = build_fusion(spec.fusion, layers, hidden)
        self.head = build_head(spec.head, self.fusion.width, classes, spec.dropout)
        self.pool = spec.pool

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[rows, layers, hidden]``, offsets ``[examples + 1]`` → scores, ``[examples, classes]`` or a row each."""
        fused = self.fusion(states)  # [rows, width]
        if self.pool == "mean":
            fused = segment_mean(fused, offsets)  # [examples, width]
        elif self.pool == "max":
            fused = segment_max(fused, offsets)
        return self.head(fused)  # type: ignore[no-any-return]

    def parameters_of(self, part: nn.Module) -> int:
        """How many numbers a part learns."""
        return sum(p.numel() for p in part.parameters())


def build_model(spec: RunSpec, layers: int, hidden: int, classes: int) -> FusedModel:
    """A model whose weights depend on ``init_seed`` alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.init_seed)
        return FusedModel(spec, layers, hidden, classes)
