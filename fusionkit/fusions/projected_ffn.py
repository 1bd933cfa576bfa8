"""Projected feed-forward networks on top: ``V^D x^n``, ``x^0 = V^E z_L``, ``x^i = LN(x^{i−1} + D gelu(B x^{i−1}))``.

Symbols: ``z_L`` the states of the last layer read, ``d`` their width; ``V^E``: d → h and ``V^D``: h → d; ``B``, ``D``:
h → h, of each of the n layers. All have biases, and start at N(0, 0.02²).
Source: Stickland and Murray (2019), "proj. FFN on top". Their text does not tell the shape, and no shape gives their
count; this is the one of their projected attention, with a feed-forward network in the place of attention.

Options: ``depth=6`` is n.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.fusions.projected_attention import MOST_LAYERS
from fusionkit.fusions.transformer_layer import start


class FeedForwardLayer(nn.Module):
    """A feed-forward network with the residual sum and its norm. Parameters: 2 h² + 4 h."""

    def __init__(self, h: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(h, h), nn.Linear(h, h)
        self.norm = nn.LayerNorm(h, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """``[…, h]`` → ``[…, h]``."""
        return self.norm(x + self.outer(functional.gelu(self.inner(x))))  # type: ignore[no-any-return]


class FeedForwardOnTop(nn.Module):
    """Networks of width h over the last layer read. Parameters: 2 d h + h + d + depth (2 h² + 4 h)."""

    def __init__(self, layers: int, hidden: int, *, h: int, depth: int = 6) -> None:
        super().__init__()
        if h < 1 or not 1 <= depth <= MOST_LAYERS:
            raise UsageError(
                "there are no such projected feed-forward networks",
                expected=f"projected-ffn:h with h at least 1, and depth from 1 to {MOST_LAYERS}",
                received=f"projected-ffn:{h},depth={depth}",
                remedy="choose a width like 252",
            )
        self.width = hidden
        self.down, self.up = nn.Linear(hidden, h), nn.Linear(h, hidden)
        self.layers = nn.Sequential(*(FeedForwardLayer(h) for _ in range(depth)))
        start(self)

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The last of the chosen layers, or of all layers."""
        return (chosen or (last,))[-1:]

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """``[…, 1, hidden]`` → ``[…, hidden]``."""
        return self.up(self.layers(self.down(states[..., -1, :])))  # type: ignore[no-any-return]
