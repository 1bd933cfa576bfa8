"""ESIM: two sequences read, aligned word by word, compared, read again.

    a = BiLSTM(z)        ã_t = Σ_s softmax_s(a_t · b_s) b_s        m = BiLSTM(ReLU(P [a; ã; a − ã; a ⊙ ã] + p))
    s = W tanh(F [mean_t m_t; max_t m_t; mean_t n_t; max_t n_t] + f) + w

Symbols: ``z`` the fused states of a sequence's rows, ``s`` the pair's scores; ``b``, ``b̃`` and ``n`` are ``a``, ``ã``
and ``m`` of the second sequence, with the same weights. Capitals are learned; ``P``, ``F`` and each
direction of both BiLSTMs have 300 numbers.
Source: Chen et al. (2017), the sequential model, as Peters, Ruder and Smith (2019) put it over frozen states. Dropout
acts on the fused states, behind ``P``, on the pooled vector and behind ``F``. For a number instead of classes (ours)
the output is one and the loss the squared error. ``torch.func.vmap`` cannot stack the LSTMs over runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.heads.attend import attend
from fusionkit.heads.bilstm import BiLstm
from fusionkit.heads.regressor import Regressor
from fusionkit.heads.softmax import Softmax
from fusionkit.ragged import segment_max, segment_mean

HIDDEN = 300


class Esim(nn.Module):
    """``outputs`` scores a pair, from all rows of both sequences. Parameters: 2400 width + 3,610,200 + 301 outputs."""

    across_rows = True

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.encoder = BiLstm(width, HIDDEN)
        self.project = nn.Linear(8 * HIDDEN, HIDDEN)
        self.composer = BiLstm(HIDDEN, HIDDEN)
        self.middle = nn.Linear(8 * HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, outputs)

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]``, offsets ``[2 · pairs + 1]`` → ``[pairs, outputs]``; a sequence without rows is zeros."""
        a = self.encoder(self.dropout(states), offsets)  # [n, 2 · HIDDEN], both sequences' rows
        other = attend(a, offsets, sides=2)  # [n, 2 · HIDDEN]
        compared = self.project(torch.cat([a, other, a - other, a * other], 1)).relu()  # [n, HIDDEN]
        m = self.composer(self.dropout(compared), offsets)  # [n, 2 · HIDDEN]
        pooled = torch.cat([segment_mean(m, offsets), segment_max(m, offsets)], 1)  # [2 · pairs, 4 · HIDDEN]
        pairs = pooled.view(-1, 8 * HIDDEN)  # [pairs, 8 · HIDDEN], the first sequence's before the second's
        return self.out(self.dropout(self.middle(self.dropout(pairs)).tanh()))  # type: ignore[no-any-return]


def esim(width: int, classes: int, dropout: float) -> Softmax:
    """BiLSTM, attention between two texts, BiLSTM, mean and max, softmax.

    Parameters: 2,400 d + 3,610,200 + 301 C. Dropout acts on the fused states, the projection's output, the pooled
    vector, the last hidden layer. Source: Chen et al. (2017); Peters, Ruder and Smith (2019).
    """
    return Softmax(Esim(width, classes, dropout))


def esim_regressor(width: int, classes: int, dropout: float) -> Regressor:
    """ESIM with one output and the squared error.

    Parameters: 2,400 d + 3,610,501. Dropout acts on the fused states, the projection's output, the pooled vector, the
    last hidden layer. Source: ours, after Chen et al. (2017). The number of classes is not used.
    """
    return Regressor(Esim(width, 1, dropout))
