"""An LSTM that climbs the layers: ``h_j, c_j = LSTM(z_j, h_{j-1}, c_{j-1})``, ``h_L`` is the fused state.

    i, f, g, o = the four parts of W z_j + b + U h_{j-1} + e, d numbers each
    c_j = σ(f) ⊙ c_{j-1} + σ(i) ⊙ tanh(g)        h_j = σ(o) ⊙ tanh(c_j)

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width and the LSTM's; ``W`` and ``U``: d → 4d, ``b``
and ``e`` their biases, all learned; ``h`` and ``c`` start at 0.
Source: the depth-wise LSTM of Li et al. (2018), one of the mixes that ElNokrashy et al. (2024) compare with, over
layers 0…L; the cell is that of ``torch.nn.LSTM``, which cannot be stacked over runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DepthLstm(nn.Module):
    """Layers read one after another, at each token alone. Parameters: 8 hidden² + 8 hidden."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden
        self.input, self.memory = nn.Linear(hidden, 4 * hidden), nn.Linear(hidden, 4 * hidden)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        h = c = torch.zeros_like(states[..., 0, :])
        for state in states.unbind(-2):
            i, f, g, o = (self.input(state) + self.memory(h)).chunk(4, -1)  # […, hidden] each
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h
