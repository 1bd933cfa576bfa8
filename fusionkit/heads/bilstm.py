"""Bidirectional LSTM layers over ragged sequences: each sequence by itself, whatever lies beside it.

    i, f, g, o = the four parts of W x_t + b + U h_{t-1} + e, h numbers each
    c_t = σ(f) ⊙ c_{t-1} + σ(i) ⊙ tanh(g)        h_t = σ(o) ⊙ tanh(c_t)

Symbols: ``x_t`` row t of a sequence; ``W``, ``U``, ``b``, ``e`` learned, for each layer and direction; ``h`` and ``c``
start at 0. The other direction goes from a sequence's end to its start, and the two ``h_t`` are concatenated.
Source: Hochreiter and Schmidhuber (1997), Graves and Schmidhuber (2005); the cell and its start, all weights uniform
on ±1/√h, are those of ``torch.nn.LSTM``, which ``torch.func.vmap`` cannot stack over runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fusionkit.ragged import segment_ids


class BiLstm(nn.Module):
    """``width`` numbers a row → ``2 · hidden``. Dropout acts between layers, so one layer has none.

    Parameters: 8 hidden (width + hidden + 2) in the first layer, 8 hidden (3 hidden + 2) in each further one.
    """

    def __init__(self, width: int, hidden: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, hidden, layers, dropout=between, bidirectional=True)

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]``, offsets ``[sequences + 1]`` → ``[n, 2 · hidden]``; sequences may be empty."""
        if not len(rows):
            return rows.new_zeros(0, 2 * self.lstm.hidden_size)  # torch's LSTM takes no batch without rows
        order, at_step = by_step(offsets)
        out, _ = self.lstm(PackedSequence(rows[order], at_step.cpu()))
        found: Tensor = out.data[order.argsort()]
        return found


def by_step(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The order in which a recurrence reads the rows: all first ones, all second ones, …; longest sequence first.

    Returns:
        order int64 ``[n]`` of the rows; int64 ``[longest]``, how many sequences have a row at each step.
    """
    lengths, ids = offsets.diff(), segment_ids(offsets, int(offsets[-1]))  # [sequences], [n]
    place = lengths.argsort(descending=True, stable=True).argsort()  # [sequences]
    step = torch.arange(len(ids), device=offsets.device) - offsets[ids]  # [n]
    return (step * len(lengths) + place[ids]).argsort(), step.bincount()
