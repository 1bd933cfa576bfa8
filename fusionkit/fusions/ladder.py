"""A narrow transformer, d // r wide, beside the encoder's: ``z_L + U s_L + b``, a step for each layer, over
an example's rows.

    s_0 = D_0 z_0        s_i = T_i(μ_i D_i z_i + (1 − μ_i) s_{i−1})        μ_i = sigmoid(a_i / 0.1)

Symbols: ``z_i`` the states of layer i at each row of the example, ``z_L`` those of the last layer read, ``d`` their
width; ``w`` = d // r; ``D_i``: d → w with a bias; ``T_i`` a transformer layer of width w over the rows of the example
(:mod:`fusionkit.fusions.transformer_layer`), heads 12 wide (or the next width that divides w), dropout 0.1; ``a_i`` a
learned number, at first 0; ``U``: w → d.
Source: ladder side-tuning (Sung et al. 2022), over layers 0…L. There the encoder runs in every step. Pruned weights
of the encoder, with which the authors begin, are left out: PyTorch's own start gave better scores.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.fusions.example_attention import Lines
from fusionkit.fusions.narrow import narrow_layer, narrow_width

TEMPERATURE = 0.1


class Ladder(nn.Module):
    """A transformer of width w = d // r. Parameters: layers (d w + w) + (layers - 1) (12 w² + 13 w + 1) + w d + d."""

    whole_examples = True  # a row's output depends on all rows of its example

    def __init__(self, layers: int, hidden: int, *, r: int) -> None:
        super().__init__()
        width = narrow_width("ladder", hidden, r)
        self.width = hidden
        self.downs = nn.ModuleList(nn.Linear(hidden, width) for _ in range(layers))
        self.layers = nn.ModuleList(narrow_layer(width) for _ in range(layers - 1))
        self.gates = nn.Parameter(torch.zeros(layers - 1))
        self.up = nn.Linear(width, hidden)

    def forward(self, states: Tensor, offsets: Tensor, longest: int | None = None) -> Tensor:
        """``[rows, layers, hidden]`` of whole sequences, offsets ``[sequences + 1]`` → ``[rows, hidden]``."""
        s, *others = (down(state) for down, state in zip(self.downs, states.unbind(1), strict=True))  # [rows, w] each
        if len(states) and others:
            lines = Lines(offsets, self.layers[0].heads, longest, len(states))  # type: ignore[arg-type]
            for gate, layer, given in zip(self._gates(), self.layers, others, strict=True):
                s = layer(s + gate * (given - s), lines)
        return states[:, -1] + self.up(s)  # type: ignore[no-any-return]

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``μ_i Π_{k>i} (1 − μ_k) ‖D_i z_i‖`` divided by its sum over the layers, ``[rows, layers]``; ``μ_0`` is 1."""
        gates = self._gates()
        passed = torch.cat([1 - gates, gates.new_ones(1)]).flip(0).cumprod(0).flip(0)  # [layers]
        entered = torch.cat([gates.new_ones(1), gates])
        sizes = [down(state).norm(dim=-1) for down, state in zip(self.downs, states.unbind(1), strict=True)]
        shares = torch.stack(sizes, -1) * entered * passed  # [rows, layers]
        return shares / shares.sum(-1, keepdim=True)

    def _gates(self) -> Tensor:
        """``μ_1 … μ_L``: ``[layers - 1]``."""
        return (self.gates / TEMPERATURE).sigmoid()
