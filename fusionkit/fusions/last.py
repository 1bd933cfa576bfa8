"""The last layer alone: ``z_L``.

The baseline of both papers: "last-layer" in Cao et al. (2022), "Base" in ElNokrashy et al. (2024).
"""

from __future__ import annotations

from torch import Tensor, nn


class Last(nn.Module):
    """``z_L``; no parameters."""

    is_affine = True

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The last layer, whatever is chosen: another one is ``layer:k``."""
        return (last,)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, 1, hidden]`` → ``[…, hidden]``."""
        return states[..., -1, :]
