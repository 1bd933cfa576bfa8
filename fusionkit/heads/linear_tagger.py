"""Token tagging by one linear map and softmax (ElNokrashy et al. 2024)."""

from __future__ import annotations

from torch import nn

from fusionkit.heads.softmax import Softmax


def linear_tagger(width: int, classes: int, dropout: float) -> Softmax:
    """One tag a word from one linear map of its fused state; dropout acts on that state."""
    return Softmax(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes)))
