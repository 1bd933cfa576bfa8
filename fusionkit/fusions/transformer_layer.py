"""A transformer layer over the rows of each example, for fusions that look at whole examples.

    a = LN(x + O Σ_t softmax_t(Q x · K x_t / √h) V x_t)        layer(x) = LN(a + D gelu(B a))

Symbols: ``x`` the ``w`` numbers of a row; ``t`` runs over the rows of its example; ``Q``, ``K``, ``V``, ``O``: w → w,
``B``: w → 4w and ``D``: 4w → w, all with biases; heads are ``h`` wide. Dropout acts on what is added to ``x`` and
``a``.
Source: BERT's layer (Devlin et al. 2019), post-norm, without positions and without dropout of attention weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.fusions.padding import PaddedExamples


class TransformerLayer(nn.Module):
    """One layer. Parameters: 12 width² + 13 width.

    Args:
        width: of the rows. head: of a head; where it does not divide the width, the narrowest above it that does.
        dropout: the share of numbers that dropout takes. std: of the fresh weights; None for PyTorch's own start.
    """

    def __init__(self, width: int, *, head: int, dropout: float = 0.0, std: float | None = None) -> None:
        super().__init__()
        self.heads = next(h for h in range(max(width // head, 1), 0, -1) if width % h == 0)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_norm, self.norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        if std is not None:
            for linear in (self.query, self.key, self.value, self.out, self.up, self.down):
                nn.init.normal_(linear.weight, std=std)
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, lines: PaddedExamples) -> Tensor:
        """The next states of the rows, ``[rows, width]`` → ``[rows, width]``, laid out as ``lines`` say."""
        a = self.attention_norm(x + self.dropout(self.out(self._attend(x, lines))))
        return self.norm(a + self.dropout(self.down(functional.gelu(self.up(a)))))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, lines: PaddedExamples) -> Tensor:
        # Written out: torch's own attention is no faster over rows this short, and cannot be stacked over runs.
        q, k, v = (lines.lines(lines.laid(f(x))) for f in (self.query, self.key, self.value))
        scale = 1 / math.sqrt(x.shape[-1] // self.heads)
        attended = []
        for one, other, value, hidden in zip(q, k, v, lines.hidden(q[0].dtype), strict=True):
            scores = torch.baddbmm(hidden, one, other.mT, alpha=scale)  # [lines, longest, longest]
            attended.append(scores.softmax(-1) @ value)
        return lines.taken(attended)  # [rows, width]
