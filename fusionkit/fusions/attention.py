"""Attention over layers: ``α_j = softmax_j(q·z_j)``, ``Σ_j α_j z_j``, at each token.

Symbols: ``z_j`` the states of layer j at one token, ``q`` one learned query for all tokens.
Source: "attention-fusion" in Cao et al. (2022), over layers 0…L; no 1/√d, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """A token chooses its own layers. Parameters: hidden.

    Starts as the plain mean of the layers: ``q`` = 0.
    """

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden
        self.query = nn.Parameter(torch.zeros(hidden))

    @staticmethod
    def reads(last: int, argument: str | None = None) -> tuple[int, ...]:
        """All layers, the embedding output included."""
        return tuple(range(last + 1))

    def forward(self, states: Tensor) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        return torch.einsum("...l,...ld->...d", self._weights(states), states)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``α`` for each token: ``[…, layers]``."""
        return self._weights(states)

    def _weights(self, states: Tensor) -> Tensor:
        return (states @ self.query).softmax(-1)  # […, layers, hidden] → […, layers]
