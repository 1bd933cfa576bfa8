"""Heads that read each fused state alone, by the two layers of Cao et al. (2022) or by one linear map."""

from __future__ import annotations

from torch import nn

from fusionkit.heads.softmax import Softmax

WIDTH = 256


def feed_forward(width: int, classes: int, dropout: float) -> nn.Sequential:
    """``[…, width]`` → ``[…, classes]``.

    The paper names no activation; ReLU is ours. Dropout acts behind each hidden layer.
    """
    return nn.Sequential(
        nn.Linear(width, WIDTH),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(WIDTH, classes),
    )


def classifier(width: int, classes: int, dropout: float) -> Softmax:
    """One label an example, read off its fused state ``[examples, width]`` by two layers of 256, then softmax.

    Parameters: 256 d + 66,048 + 257 C. Dropout acts on each hidden layer's output. Source: Cao et al. (2022).
    """
    return Softmax(feed_forward(width, classes, dropout))


def linear_classifier(width: int, classes: int, dropout: float) -> Softmax:
    """One label an example from one linear map of its fused state ``[examples, width]``, then softmax.

    Parameters: d C + C. Dropout acts on the fused states. Source: fine-tuning of Devlin et al. (2019), without pooler.
    """
    return Softmax(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes)))


def tagger(width: int, classes: int, dropout: float) -> Softmax:
    """One tag a word, each decided alone, read off the words' fused states ``[words, width]`` by two layers of 256.

    Parameters: 256 d + 66,048 + 257 C. Dropout acts on each hidden layer's output. Source: Cao et al. (2022), without
    CRF.
    """
    return Softmax(feed_forward(width, classes, dropout))


def linear_tagger(width: int, classes: int, dropout: float) -> Softmax:
    """One tag a word from one linear map of its fused state, then softmax.

    Parameters: d C + C. Dropout acts on the fused states. Source: ElNokrashy et al. (2024).
    """
    return Softmax(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes)))
