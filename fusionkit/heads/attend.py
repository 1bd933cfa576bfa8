"""Scores by a module that may look across the rows of a sequence, and attention between rows.

    c_t = Σ_s softmax_s(x_t · y_s) y_s

Symbols: ``x_t`` a row of a sequence; ``y_s`` the rows of the same sequence or of its pair's other one. Where the other
has no rows, ``c_t`` is 0.
Source: the biattention of McCann et al. (2017), the soft alignment of Chen et al. (2017).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.ragged import pad


def scores_of(score: nn.Module, states: Tensor, offsets: Tensor) -> Tensor:
    """A module's scores of rows; one with ``across_rows = True`` gets the offsets of the sequences too."""
    found: Tensor = score(states, offsets) if getattr(score, "across_rows", False) else score(states)
    return found


def attend(rows: Tensor, offsets: Tensor, sides: int) -> Tensor:
    """For each row the attention-weighted mean of the rows it attends to: ``[n, d]`` → ``[n, d]``.

    Args:
        offsets: int64 ``[sequences + 1]``. sides: 1, a sequence attends to itself; 2, to its neighbour (0 and 1 to
            each other, 2 and 3, …).
    """
    if not len(rows):
        return rows
    padded, mask = pad(rows, offsets)  # [sequences, longest, d], [sequences, longest]
    others, seen = padded, mask
    if sides == 2:
        others, seen = (x.reshape(-1, 2, *x.shape[1:]).flip(1).reshape(x.shape) for x in (padded, mask))
    seen = seen.clone()
    seen[:, 0] = True  # a softmax over nothing, of a sequence without rows, would make all gradients NaN
    scores = padded @ others.mT  # [sequences, longest, longest of the others]
    weights = scores.masked_fill(~seen.unsqueeze(1), -torch.inf).softmax(-1)
    return (weights @ others)[mask]
