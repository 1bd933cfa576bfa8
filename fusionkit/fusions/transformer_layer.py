"""A transformer layer over the rows of each example, for fusions that look at whole examples.

    a = LN(x + O Σ_t softmax_t(Q x · K x_t / √h) V x_t)        layer(x) = LN(a + D gelu(B a))

Symbols: ``x`` the ``w`` numbers of a row; ``t`` runs over the rows of its example; ``Q``, ``K``, ``V``, ``O``: w → w,
``B``: w → 4w and ``D``: 4w → w, all with biases; heads are ``h`` wide. Dropout acts on what is added to ``x`` and
``a``.
Source: BERT's layer (Devlin et al. 2019), post-norm, without positions and without dropout of attention weights.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fusionkit.fusions.example_attention import Lines, attend

STD = 0.02


class TransformerLayer(nn.Module):
    """One layer. Parameters: 12 width² + 13 width.

    Args:
        width: of the rows. head: the width of a head; if it does not divide ``width``, the next larger one that does.
            A narrower layer has one head.
        dropout: the dropout rate.
    """

    def __init__(self, width: int, *, head: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = next(h for h in range(max(width // head, 1), 0, -1) if width % h == 0)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_norm, self.norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lines: Lines) -> Tensor:
        """The next states of the rows, ``[rows, width]`` → ``[rows, width]``, laid out as ``lines`` say."""
        attended = attend(self.query(x), self.key(x), self.value(x), lines)
        a = self.attention_norm(x + self.dropout(self.out(attended)))
        return self.norm(a + self.dropout(self.down(functional.gelu(self.up(a)))))  # type: ignore[no-any-return]


def start(module: nn.Module) -> nn.Module:
    """The module with its linear maps initialised from N(0, 0.02²), and their biases with 0."""
    for each in module.modules():
        if isinstance(each, nn.Linear):
            nn.init.normal_(each.weight, std=STD)
            nn.init.zeros_(each.bias)
    return module
