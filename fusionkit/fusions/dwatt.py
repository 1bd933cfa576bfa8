"""Depth-wise attention (DWAtt): ``z_L + Σ_n s_n v_n``, ``s = softmax_n(q·k_n / τ)``.

    k_n = W_K p_n + b_K        v_n = LN_n(f_n(z_n))        q = 1 + elu(z_L + f_Q(z_L))
    s   = softmax_n(q·k_n / τ)
    h   = z_L + Σ_n s_n v_n         f(x) = W LN(gelu(U x + a)) + b

Symbols: ``z_n`` the states of layer n at one token and ``z_L`` those of the last layer read, ``d`` their width;
``p_n`` in [0, 1)^24 a position that is drawn once and never trained; ``f_n`` and ``f_Q`` bottlenecks of width
d/2, one a layer and one for the query; ``LN`` layer norms with weights of their own; ``τ`` the temperature.
Source: ElNokrashy et al. (2024), equations 3 to 11, over layers 1…L; τ = 1, as in the paper, where the softmax
starts nearly one-hot.

Options: ``scale=yes`` makes τ = √d, so that the weights start nearly equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

POSITION = 24


class DWAtt(nn.Module):
    """``z_L`` plus a weighted sum over layers. Parameters: layers · (d² + 4.5 d) + (d² + 2.5 d) + 25 d."""

    positions: Tensor

    def __init__(self, layers: int, hidden: int, *, scale: bool = False) -> None:
        super().__init__()
        self.width = hidden
        self.temperature = math.sqrt(hidden) if scale else 1.0
        self.register_buffer("positions", torch.rand(layers, POSITION))
        self.key = nn.Linear(POSITION, hidden)
        self.values = nn.ModuleList(nn.Sequential(bottleneck(hidden), nn.LayerNorm(hidden)) for _ in range(layers))
        self.query = bottleneck(hidden)

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Layers 1 … L; for an encoder with embeddings only, the embeddings."""
        return chosen or tuple(range(1, last + 1)) or (0,)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        fused, weights = states[..., -1, :], self._weights(states)  # […, hidden], […, layers]
        for n, (value, state) in enumerate(zip(self.values, states.unbind(-2), strict=True)):
            fused = fused + weights[..., n, None] * value(state)
        return fused

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``s`` for each token: ``[…, layers]``."""
        return self._weights(states)

    def _weights(self, states: Tensor) -> Tensor:
        last = states[..., -1, :]
        query = 1 + functional.elu(last + self.query(last))  # […, hidden]
        keys = self.key(self.positions)  # [layers, hidden]
        scores: Tensor = query @ keys.T / self.temperature  # […, layers]
        return scores.softmax(-1)


def bottleneck(hidden: int) -> nn.Sequential:
    """``f``: ``[…, hidden]`` → ``[…, hidden]`` through half the width."""
    half = hidden // 2
    return nn.Sequential(nn.Linear(hidden, half), nn.GELU(), nn.LayerNorm(half), nn.Linear(half, hidden))
