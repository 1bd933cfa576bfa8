"""Token tagging: two feed-forward layers of 256, then softmax at each word (Cao et al. 2022, without CRF)."""

from __future__ import annotations

from fusionkit.heads.feed_forward import feed_forward
from fusionkit.heads.softmax import Softmax


def tagger(width: int, classes: int, dropout: float) -> Softmax:
    """One tag a word, each decided alone, read off the words' fused states ``[words, width]`` by two layers of 256.

    Parameters: 256 d + 66,048 + 257 C. Dropout acts on each hidden layer's output. Source: Cao et al. (2022), without
    CRF.
    """
    return Softmax(feed_forward(width, classes, dropout))
