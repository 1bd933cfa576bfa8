"""One narrow transformer layer, d // r wide, over all layers at once: ``z_L + U T(s) + b``, over an example's rows.

    s = (Σ_i D_i z_i + c) / √n

Symbols: ``z_i`` the states of layer i at each row of the example, ``z_L`` those of the last of the ``n`` layers read,
``d`` their width; ``w`` = d // r; ``D_i``: d → w, and ``c`` a bias for their sum; ``T`` a transformer layer of width w
over the rows of the example (:mod:`fusionkit.fusions.transformer_layer`), heads 12 wide (or the next width that
divides w), dropout 0.1; ``U``: w → d.
Source: fusionkit's own, over layers 0…L: a ladder (Sung et al. 2022) of one step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fusionkit.fusions.example_attention import Lines
from fusionkit.fusions.narrow import narrow_layer, narrow_width


class Flat(nn.Module):
    """A layer of width w = d // r. Parameters: layers d w + w + 12 w² + 13 w + w d + d."""

    whole_examples = True  # a row's output depends on all rows of its example

    def __init__(self, layers: int, hidden: int, *, r: int) -> None:
        super().__init__()
        width = narrow_width("flat", hidden, r)
        self.width, self.count = hidden, layers
        self.down = nn.Linear(layers * hidden, width)
        # Each D_i starts like a linear map of d inputs, because the sum is divided by √n.
        nn.init.uniform_(self.down.weight, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        self.layer = narrow_layer(width)
        self.up = nn.Linear(width, hidden)

    def forward(self, states: Tensor, offsets: Tensor, longest: int | None = None) -> Tensor:
        """``[rows, layers, hidden]`` of whole sequences, offsets ``[sequences + 1]`` → ``[rows, hidden]``."""
        s = self.down(states.flatten(1)) / math.sqrt(self.count)  # [rows, w]
        if len(states):
            s = self.layer(s, Lines(offsets, self.layer.heads, longest, len(states)))
        return states[:, -1] + self.up(s)  # type: ignore[no-any-return]

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``‖D_i z_i‖`` divided by its sum over the layers, ``[rows, layers]``."""
        maps = self.down.weight.view(-1, self.count, self.width)  # [w, layers, hidden]
        sizes: Tensor = torch.einsum("rld,wld->rlw", states, maps).norm(dim=-1)  # [rows, layers]
        return sizes / sizes.sum(-1, keepdim=True)
