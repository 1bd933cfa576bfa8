"""Token tagging by one linear map and softmax (ElNokrashy et al. 2024)."""

from __future__ import annotations

from torch import nn

from fusionkit.heads.softmax import Softmax


def linear_tagger(width: int, classes: int, dropout: float) -> Softmax:
    """One tag a word from one linear map of its fused state, then softmax.

    Parameters: d C + C. Dropout acts on the fused states. Source: ElNokrashy et al. (2024).
    """
    return Softmax(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes)))
