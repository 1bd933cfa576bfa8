"""Attention over layers: ``α_j = softmax_j(q·z_j / τ)``, ``Σ_j α_j z_j``, at each token.

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width, ``q`` one learned query for all tokens,
``τ`` the temperature.
Source: "attention-fusion" in Cao et al. (2022), over layers 0…L; τ = 1, as in the paper.

Options: ``scale=yes`` makes τ = √d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """A token chooses its own layers. Parameters: hidden.

    Starts as the plain mean of the layers: ``q`` = 0.
    """

    def __init__(self, layers: int, hidden: int, *, scale: bool = False) -> None:
        super().__init__()
        self.width = hidden
        self.temperature = math.sqrt(hidden) if scale else 1.0
        self.query = nn.Parameter(torch.zeros(hidden))

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        return torch.einsum("...l,...ld->...d", self._weights(states), states)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``α`` for each token: ``[…, layers]``."""
        return self._weights(states)

    def _weights(self, states: Tensor) -> Tensor:
        return (states @ self.query / self.temperature).softmax(-1)  # […, layers, hidden] → […, layers]
