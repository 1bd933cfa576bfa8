"""Weights scored by a small network: ``w_j = softmax_j(f(z_j))``, ``Σ_j w_j z_j`` with ``f(z) = v·tanh(U z + b)``.

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width; ``U: d → d/2``, ``b`` and ``v`` learned and
shared by all layers.
Source: Wang et al. (2018), one of the mixes that ElNokrashy et al. (2024) compare with, over layers 0…L. The
width d/2 and tanh are ours; a bias behind ``v`` would cancel in the softmax.

Options: ``softmax=no`` uses the scores themselves as weights, as ElNokrashy et al. (2024, section 7) describe the
mix: ``w_j = f(z_j)`` with ``f(z) = v·tanh(U z + b) + c``. The bias ``c`` is learned and starts at 1 / layers: ``v``
starts at 0, so that all weights would be 0 without it. Such weights may be negative and sum to any number: none are
shown.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MlpWeights(nn.Module):
    """A token chooses its own layers, by more than one direction. Parameters: d²/2 + d. ``softmax=no`` adds ``c``.

    Starts as the plain mean of the layers: ``v`` = 0, and ``c`` = 1 / layers.
    """

    def __init__(self, layers: int, hidden: int, *, softmax: bool = True) -> None:
        super().__init__()
        self.width = hidden
        self.inner = nn.Linear(hidden, hidden // 2)
        self.outer = nn.Parameter(torch.zeros(hidden // 2))
        self.bias = None if softmax else nn.Parameter(torch.tensor(1 / layers))

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        return torch.einsum("...l,...ld->...d", self._weights(states), states)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """``w`` for each token: ``[…, layers]``; None without the softmax."""
        return self._weights(states) if self.bias is None else None

    def _weights(self, states: Tensor) -> Tensor:
        scores: Tensor = self.inner(states).tanh() @ self.outer  # […, layers, hidden] → […, layers]
        return scores.softmax(-1) if self.bias is None else scores + self.bias
