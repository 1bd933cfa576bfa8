"""Scalar mix: ``γ Σ_j softmax(w)_j z_j``.

Symbols: ``z_j`` the states of layer j at one token, ``w`` one scalar a layer, ``γ`` a scale.
Source: ELMo's scalar mix (Peters et al. 2018); "linear-fusion" in Cao et al. (2022), over layers 0…L.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """One weight a layer, the same for all tokens. Parameters: layers + 1 (``γ``).

    Starts as the plain mean of the layers: ``w`` = 0, ``γ`` = 1.
    """

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden
        self.weight = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    @staticmethod
    def reads(last: int, argument: str | None = None) -> tuple[int, ...]:
        """All layers, the embedding output included."""
        return tuple(range(last + 1))

    def forward(self, states: Tensor) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        mix = self.gamma * self.weight.softmax(-1)  # [layers]
        return torch.einsum("l,...ld->...d", mix, states)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``softmax(w)`` for each token: ``[…, layers]``."""
        return self.weight.softmax(-1).expand(states.shape[:-1])
