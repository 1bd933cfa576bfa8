"""Concatenation: ``P [z_1; …; z_L] + b`` with ``P: L·d → 256``.

Symbols: ``z_j`` the states of layer j at one token, ``d`` their width, ``P`` and ``b`` learned.
Source: "concat-fusion" in Cao et al. (2022), over the L transformer layers, without the embeddings. Its section 3.3 has
the projection in front of the decoder.

Options: ``first=yes`` leaves the projection out: the fusion is ``[z_1; …; z_L]``, L·d wide, with no weights of its own.
The head's first layer does the projecting and is L times as large as over ``last``. Cao et al. count so in footnote 2.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDTH = 256


class Concat(nn.Module):
    """One projection of all layers side by side. Parameters: layers · hidden · 256 + 256. With ``first=yes`` none."""

    is_affine = True

    def __init__(self, layers: int, hidden: int, *, first: bool = False) -> None:
        super().__init__()
        self.width = layers * hidden if first else WIDTH
        self.project = None if first else nn.Linear(layers * hidden, WIDTH)

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Layers 1 … L; for an encoder with embeddings only, the embeddings."""
        return chosen or tuple(range(1, last + 1)) or (0,)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, 256]``, with ``first=yes`` ``[…, layers · hidden]``."""
        side_by_side = states.flatten(-2)
        return side_by_side if self.project is None else self.project(side_by_side)
