"""Sum of affine maps: ``Σ_n (W_n z_n + b_n)`` with ``W_n: d → d``.

Symbols: ``z_n`` the states of layer n at one token, ``d`` their width, ``W_n`` and ``b_n`` learned.
Source: "Concat" in ElNokrashy et al. (2024), over layers 1…L: one projection of all layers side by side,
with a bias for each.
"""

from __future__ import annotations

from torch import Tensor, nn


class ConcatAffine(nn.Module):
    """Each layer through a map of its own. Parameters: layers · (hidden² + hidden)."""

    is_affine = True

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden
        self.maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Layers 1 … L; for an encoder with embeddings only, the embeddings."""
        return chosen or tuple(range(1, last + 1)) or (0,)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, hidden]``."""
        fused = states.new_zeros(self.width)
        for affine, state in zip(self.maps, states.unbind(-2), strict=True):
            fused = fused + affine(state)  # […, hidden]
        return fused
