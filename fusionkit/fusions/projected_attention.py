"""Projected attention on top: ``V^D x^n``, ``x^0 = V^E z_L``, over an example's rows.

    x^i = LN(x^{i−1} + O Σ_t softmax_t(Q x^{i−1} · K x^{i−1}_t / √w) V x^{i−1}_t)

Symbols: ``z_L`` the states of the last layer read, ``d`` their width; ``V^E``: d → h and ``V^D``: h → d; ``t`` runs
over the rows of the example; ``Q``, ``K``, ``V``, ``O``: h → h, of each of the n layers, with heads of width ``w``.
All have biases, and start at N(0, 0.02²).
Source: Stickland and Murray (2019), "proj. attn. on top"; the output matrix, the residual, the layer norm and the
twelve heads are those of the authors' code. Neither text nor code adds ``z_L``.

Options: ``depth=6`` is n. ``heads=12`` is an upper bound: the largest number of heads up to it that divides h is used.
"""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.fusions.example_attention import Lines, attend
from fusionkit.fusions.transformer_layer import start

MOST_LAYERS = 64


class AttentionLayer(nn.Module):
    """Attention with its output matrix, the residual sum and its norm. Parameters: 4 h² + 6 h."""

    def __init__(self, h: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(h, h) for _ in range(4))
        self.norm = nn.LayerNorm(h, eps=1e-12)

    def forward(self, x: Tensor, lines: Lines) -> Tensor:
        """``[rows, h]`` → ``[rows, h]``, laid out as ``lines`` say."""
        attended = attend(self.query(x), self.key(x), self.value(x), lines)
        return self.norm(x + self.out(attended))  # type: ignore[no-any-return]


class AttentionOnTop(nn.Module):
    """Attention of width h over the last layer read. Parameters: 2 d h + h + d + depth (4 h² + 6 h)."""

    whole_examples = True  # a row's output depends on all rows of its example

    def __init__(self, layers: int, hidden: int, *, h: int, depth: int = 6, heads: int = 12) -> None:
        super().__init__()
        if h < 1 or heads < 1 or not 1 <= depth <= MOST_LAYERS:
            raise UsageError(
                "there is no such projected attention",
                expected=f"projected-attention:h with h and heads at least 1, and depth from 1 to {MOST_LAYERS}",
                received=f"projected-attention:{h} with {heads} heads, depth={depth}",
                remedy="choose a width like 204",
            )
        self.width, self.heads = hidden, next(k for k in range(min(heads, h), 0, -1) if h % k == 0)
        self.down, self.up = nn.Linear(hidden, h), nn.Linear(h, hidden)
        self.layers = nn.ModuleList(AttentionLayer(h) for _ in range(depth))
        start(self)

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The last of the chosen layers, or of all layers."""
        return (chosen or (last,))[-1:]

    def forward(self, states: Tensor, offsets: Tensor, longest: int | None = None) -> Tensor:
        """``[rows, 1, hidden]`` of whole sequences, offsets ``[sequences + 1]`` → ``[rows, hidden]``."""
        x = self.down(states[:, -1])  # [rows, h]
        lines = Lines(offsets, self.heads, longest, len(states)) if len(x) else None
        for layer in self.layers if lines is not None else ():
            x = layer(x, lines)
        return self.up(x)  # type: ignore[no-any-return]
