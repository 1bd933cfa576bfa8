"""n new transformer layers on top of the last: ``x^0 = z_L``, ``x^i = layer_i(x^{i-1})``, over an example's rows.

    a = LN(x + O Σ_t softmax_t(Q x · K x_t / √w) V x_t)        layer(x) = LN(a + D gelu(B a))

Symbols: ``z_L`` the states of the last layer read, ``d`` their width; ``t`` runs over the rows of the example;
``Q``, ``K``, ``V``, ``O``: d → d, ``B``: d → 4d and ``D``: 4d → d, all with biases; heads are ``w`` = 64 wide
(where 64 does not divide d: the narrowest above it that does).
Source: "Base + n" in ElNokrashy et al. (2024); the layer and its start are BERT's (Devlin et al. 2019), without
dropout and without positions, which ``z_L`` knows already.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.fusions.padding import PaddedExamples

HEAD, STD, MOST_LAYERS = 64, 0.02, 64


class ExtraLayers(nn.Module):
    """Transformer layers over the last layer read. Parameters: n · (12 d² + 13 d)."""

    whole_examples = True  # a row's output depends on all rows of its example

    def __init__(self, layers: int, hidden: int, *, n: int) -> None:
        super().__init__()
        if not 1 <= n <= MOST_LAYERS:
            raise UsageError(
                "there are no such extra layers",
                expected=f"extra-layers:n with n from 1 to {MOST_LAYERS}",
                received=f"extra-layers:{n}",
                remedy="choose --fusion last for none",
            )
        self.width = hidden
        self.layers = nn.ModuleList(TransformerLayer(hidden) for _ in range(n))

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The last layer, of those chosen."""
        return (chosen or (last,))[-1:]

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[rows, 1, hidden]`` of whole examples, offsets ``[examples + 1]`` → ``[rows, hidden]``."""
        x = states[:, -1]
        if not len(x):
            return x
        lines = PaddedExamples(offsets)
        for layer in self.layers:
            x = layer(x, lines)
        return x

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """One layer carries all the weight: none to show."""
        return None


class TransformerLayer(nn.Module):
    """One layer of BERT. Rows are padded for the attention between them alone: the products are most of the work."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heads = next(h for h in range(max(hidden // HEAD, 1), 0, -1) if hidden % h == 0)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.attention_norm, self.norm = (nn.LayerNorm(hidden, eps=1e-12) for _ in range(2))
        for linear in (self.query, self.key, self.value, self.out, self.up, self.down):
            nn.init.normal_(linear.weight, std=STD)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, lines: PaddedExamples) -> Tensor:
        """The next states of the rows, ``[rows, hidden]`` → ``[rows, hidden]``, laid out as ``lines`` say."""
        a = self.attention_norm(x + self.out(self._attend(x, lines)))
        return self.norm(a + self.down(functional.gelu(self.up(a))))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, lines: PaddedExamples) -> Tensor:
        # Written out: torch's own attention on CPUs cannot be stacked over runs.
        q, k, v = (self._side_by_side(f(x), lines) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # [examples, heads, longest, longest]
        weights = scores.masked_fill(~lines.seen[:, None, None, :], -torch.inf).softmax(-1)
        return lines.taken((weights @ v).transpose(1, 2).reshape(-1, x.shape[-1]))  # [rows, hidden]

    def _side_by_side(self, x: Tensor, lines: PaddedExamples) -> Tensor:
        """``[rows, hidden]`` → ``[examples, heads, longest, width of a head]``."""
        return lines.laid(x).reshape(*lines.seen.shape, self.heads, -1).transpose(1, 2)
