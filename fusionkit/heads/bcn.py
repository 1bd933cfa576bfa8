"""The biattentive classification network over one sequence, which it takes for both of its inputs.

    x = BiLSTM(ReLU(A z + a))        c_t = Σ_s softmax_s(x_t · x_s) x_s        m = BiLSTM([x; x − c; x ⊙ c])
    p = [max_t m_t; mean_t m_t; min_t m_t; Σ_t softmax_t(v · m_t) m_t]
    s = W max_k(B_k max_k(C_k p + c_k) + b_k) + w

Symbols: ``z`` the fused states of an example's rows, ``s`` its scores; capitals and ``v`` learned, a second index k
counts the pieces of a maxout layer. ``A`` and both BiLSTMs have 300 numbers (in each direction), ``C`` 600, ``B`` 300.
Source: McCann et al. (2017), with one sequence twice as Peters et al. (2018) used it for SST and Peters, Ruder and
Smith (2019) over frozen states. Ours: one integrator, as the two sides are the same; no batch norm, by which an example
would see its batch; two pieces a maxout layer, and the widths; no bias beside ``v``, which the softmax would cancel.
Dropout acts before each feed-forward layer. ``torch.func.vmap`` cannot stack the LSTMs over runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.heads.attend import attend
from fusionkit.heads.bilstm import BiLstm
from fusionkit.heads.softmax import Softmax
from fusionkit.ragged import segment_max, segment_mean, segment_softmax, segment_sum

HIDDEN, PIECES = 300, 2


class Bcn(nn.Module):
    """One score a class for each example, from all of its rows. Parameters: 300 width + 9,732,300 + 301 C."""

    across_rows = True

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.enter = nn.Linear(width, HIDDEN)
        self.encoder = BiLstm(HIDDEN, HIDDEN)
        self.integrator = BiLstm(6 * HIDDEN, HIDDEN)
        self.attention = nn.Linear(2 * HIDDEN, 1, bias=False)
        self.middle = nn.Linear(8 * HIDDEN, PIECES * 2 * HIDDEN)
        self.upper = nn.Linear(2 * HIDDEN, PIECES * HIDDEN)
        self.out = nn.Linear(HIDDEN, classes)

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]``, offsets ``[examples + 1]`` → ``[examples, classes]``; one without rows is pooled to zeros."""
        entered = self.enter(self.dropout(states)).relu()  # [n, HIDDEN]
        x = self.encoder(entered, offsets)  # [n, 2 · HIDDEN]
        c = attend(x, offsets, sides=1)  # [n, 2 · HIDDEN]
        m = self.integrator(torch.cat([x, x - c, x * c], 1), offsets)  # [n, 2 · HIDDEN]
        weights = segment_softmax(self.attention(m), offsets)  # [n, 1]
        pools = [segment_max(m, offsets), segment_mean(m, offsets), -segment_max(-m, offsets)]
        pooled = torch.cat([*pools, segment_sum(weights * m, offsets)], 1)  # [examples, 8 · HIDDEN]
        for layer in (self.middle, self.upper):
            pooled = layer(self.dropout(pooled)).unflatten(1, (PIECES, -1)).amax(1)  # [examples, 2 · HIDDEN], HIDDEN
        return self.out(self.dropout(pooled))  # type: ignore[no-any-return]


def bcn(width: int, classes: int, dropout: float) -> Softmax:
    """BiLSTM, attention of the text to itself, BiLSTM, four pools, maxout, softmax.

    Parameters: 300 d + 9,732,300 + 301 C. Dropout acts on the fused states and the input of each layer behind the
    pools. Source: McCann et al. (2017); Peters, Ruder and Smith (2019).
    """
    return Softmax(Bcn(width, classes, dropout))
