"""A weight for each layer and each number of it: ``Σ_j softmax_j(W)_j ⊙ z_j``.

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width, ``W_j`` a learned vector of d numbers per
layer; the softmax runs over the layers, separately for each of the d numbers.
Source: "fine-grained layer attention" in Liu et al. (2021), over layers 0…L; one of the mixes that ElNokrashy et
al. (2024) compare with.

Options: ``softmax=no`` uses ``W_j`` itself as the weights, ``Σ_j W_j ⊙ z_j``, as ElNokrashy et al. (2024, section 7)
describe the mix; each weight starts at 1 / layers. Such weights may be negative and sum to any number: none are shown.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ElementWise(nn.Module):
    """A scalar mix for each number of the state. Parameters: layers · hidden.

    Starts as the plain mean of the layers: ``W`` = 0, or 1 / layers without the softmax.
    """

    is_affine = True

    def __init__(self, layers: int, hidden: int, *, softmax: bool = True) -> None:
        super().__init__()
        self.width = hidden
        self.softmax = softmax
        self.weight = nn.Parameter(torch.full((layers, hidden), 0.0 if softmax else 1 / layers))

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        return (states * (self.weight.softmax(0) if self.softmax else self.weight)).sum(-2)

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """The mean of a layer's weights over its numbers, for each token: ``[…, layers]``; None without the softmax."""
        return self.weight.softmax(0).mean(-1).expand(states.shape[:-1]) if self.softmax else None
