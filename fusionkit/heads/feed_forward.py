"""The feed-forward readout of Cao et al. (2022): two layers of 256, then one score a class."""

from __future__ import annotations

from torch import nn

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
