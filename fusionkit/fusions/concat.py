"""Concatenation: ``P [z_1; …; z_L] + b`` with ``P: L·d → 256``.

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width, ``P`` and ``b`` learned.
Source: "concat-fusion" in Cao et al. (2022), over the L transformer layers, without the embeddings.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDTH = 256


class Concat(nn.Module):
    """One projection of all layers side by side. Parameters: layers · hidden · 256 + 256."""

    is_affine = True

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = WIDTH
        self.project = nn.Linear(layers * hidden, WIDTH)

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Layers 1 … L; of an encoder that is embeddings alone, those."""
        return chosen or tuple(range(1, last + 1)) or (0,)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, 256]``."""
        return self.project(states.flatten(-2))  # type: ignore[no-any-return]

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """Every layer has a matrix of its own, not a weight: none to show."""
        return None
