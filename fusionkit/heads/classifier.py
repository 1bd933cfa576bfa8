"""Classification of a whole example: two feed-forward layers of 256, then softmax (Cao et al. 2022)."""

from __future__ import annotations

from fusionkit.heads.feed_forward import feed_forward
from fusionkit.heads.softmax import Softmax


def classifier(width: int, classes: int, dropout: float) -> Softmax:
    """One label an example, read off its fused state ``[examples, width]`` by two layers of 256, then softmax.

    Parameters: 256 d + 66,048 + 257 C. Dropout acts on each hidden layer's output. Source: Cao et al. (2022).
    """
    return Softmax(feed_forward(width, classes, dropout))
