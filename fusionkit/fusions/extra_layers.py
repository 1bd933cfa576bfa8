"""n new transformer layers on top of the last: ``x^0 = z_L``, ``x^i = layer_i(x^{i-1})``, over an example's rows.

    a = LN(x + O Σ_t softmax_t(Q x · K x_t / √w) V x_t)        layer(x) = LN(a + D gelu(B a))

Symbols: ``z_L`` the states of the last layer read, ``d`` their width; ``t`` runs over the rows of the example;
``Q``, ``K``, ``V``, ``O``: d → d, ``B``: d → 4d and ``D``: 4d → d, all with biases; heads are ``w`` = 64 wide
(where 64 does not divide d: the narrowest above it that does).
Source: "Base + n" in ElNokrashy et al. (2024); the layer and its start are BERT's (Devlin et al. 2019), without
dropout and without positions, which ``z_L`` knows already.
"""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.fusions.example_attention import Lines
from fusionkit.fusions.transformer_layer import TransformerLayer, start

HEAD, MOST_LAYERS = 64, 64


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
        self.layers = nn.ModuleList(start(TransformerLayer(hidden, head=HEAD)) for _ in range(n))

    @staticmethod
    def reads(last: int, chosen: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The last of the chosen layers, or of all layers."""
        return (chosen or (last,))[-1:]

    def forward(self, states: Tensor, offsets: Tensor, longest: int | None = None) -> Tensor:
        """``[rows, 1, hidden]`` of whole sequences, offsets ``[sequences + 1]`` → ``[rows, hidden]``."""
        x = states[:, -1]
        if not len(x):
            return x
        lines = Lines(offsets, self.layers[0].heads, longest, len(states))  # type: ignore[arg-type]
        for layer in self.layers:
            x = layer(x, lines)
        return x
