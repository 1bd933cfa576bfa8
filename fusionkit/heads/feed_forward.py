"""The feed-forward readout of Cao et al. (2022): two layers of 256, then one score a class."""

from __future__ import annotations

from torch import Tensor, nn

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


def softmax_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy: ``[n, classes]`` scores, int64 ``[n]`` targets; 0 where n = 0."""
    # The mean over nothing is NaN, and so would a run's loss be: a batch may hold only examples without words.
    if len(targets) == 0:
        return scores.sum()
    return nn.functional.cross_entropy(scores, targets)
