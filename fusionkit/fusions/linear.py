"""Scalar mix: ``γ Σ_j softmax(w)_j z_j``.

Symbols: ``z_j`` the states of layer j at one token, ``w`` one scalar per layer, ``γ`` a scale.
Source: ELMo's scalar mix (Peters et al. 2018); "linear-fusion" in Cao et al. (2022), over layers 0…L.

Options: ``gamma=no`` leaves γ out (it is 1). ``embeddings=no`` leaves layer 0 out. ``norm=token`` replaces
``z_j`` by ``(z_j − mean) / std`` over the numbers of each token. ELMo's own layer norm runs over the whole batch, so
that a token's output would depend on other tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Module):
    """One weight a layer, the same for all tokens. Parameters: layers + 1.

    Starts as the plain mean of the layers: ``w`` = 0, ``γ`` = 1.
    """

    def __init__(
        self, layers: int, hidden: int, *, gamma: bool = True, norm: Literal["none", "token"] = "none"
    ) -> None:
        super().__init__()
        self.width = hidden
        self.norm = norm
        self.weight = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(())) if gamma else None

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None, *, embeddings: bool = True) -> tuple[int, ...]:
        return tuple(j for j in chosen or range(last + 1) if embeddings or j > 0)

    @staticmethod
    def is_affine(*, norm: str = "none") -> bool:
        """False with ``norm=token``, which normalises each token by its own statistics."""
        return norm == "none"

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        mix = self.weight.softmax(-1)  # [layers]
        if self.gamma is not None:
            mix = self.gamma * mix
        if self.norm == "token":
            states = functional.layer_norm(states, states.shape[-1:])
        return torch.einsum("l,...ld->...d", mix, states)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``softmax(w)`` for each token: ``[…, layers]``."""
        return self.weight.softmax(-1).expand(states.shape[:-1])
