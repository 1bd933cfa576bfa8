"""Tagging by two BiLSTM layers under a linear-chain CRF, as Peters, Ruder and Smith (2019) put over frozen states.

    e_t = W [→h_t; ←h_t] + b

Symbols: ``h_t`` the second layer's states at word t, 200 in each direction, of a BiLSTM over the example's words;
``e_t`` the emissions that :mod:`fusionkit.heads.crf` decides by.
Source: their task model for NER (2 layers, 200, dropout 0.5), after Lample et al. (2016). Dropout acts on the fused
states, between the layers and on their output. ``torch.func.vmap`` cannot stack the LSTM over runs.
"""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.bilstm import BiLstm
from fusionkit.heads.crf import Crf

HIDDEN, LAYERS = 200, 2


class BiLstmEmissions(nn.Module):
    """One score a tag for each word, from all words of its example. Parameters: 1600 width + 1,286,400 + 401 C."""

    across_rows = True

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.encoder = BiLstm(width, HIDDEN, LAYERS, dropout)
        self.out = nn.Linear(2 * HIDDEN, classes)

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[words, width]`` → ``[words, classes]``."""
        encoded = self.encoder(self.dropout(states), offsets)  # [words, 2 · HIDDEN]
        return self.out(self.dropout(encoded))  # type: ignore[no-any-return]


def bilstm_crf(width: int, classes: int, dropout: float) -> Crf:
    """Two BiLSTM layers over the words, then a linear-chain CRF.

    Parameters: 1,600 d + 1,286,400 + C² + 403 C. Dropout acts on the fused states, what goes from one BiLSTM layer to
    the next, the last one's output. Source: Peters, Ruder and Smith (2019).
    """
    return Crf(BiLstmEmissions(width, classes, dropout), classes)
