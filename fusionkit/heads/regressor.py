"""Regression: one number an example, trained by the squared error; by itself behind two feed-forward layers of 256.

    loss = mean over rows of (s − y)²

Symbols: ``s`` the head's one output, ``y`` the number to predict, as the data has it.
Source: the layers of Cao et al. (2022); the loss as fine-tuning on STS-B has it (Devlin et al. 2019).
"""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.attend import scores_of
from fusionkit.heads.feed_forward import feed_forward


class Regressor(nn.Module):
    """One number an example.

    Args:
        score: a module from ``[n, width]`` to ``[n, 1]``.
    """

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]`` → ``[n, 1]``."""
        return scores_of(self.score, states, offsets)

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean squared error over the rows; 0 where there is none. ``targets``: float ``[n]``."""
        if len(targets) == 0:
            return scores.sum()  # the mean over nothing is NaN
        return nn.functional.mse_loss(scores.squeeze(1), targets)

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The number of each row, ``[n]``, in the scores' precision."""
        return scores.squeeze(1)


def regressor(width: int, classes: int, dropout: float) -> Regressor:
    """One number an example, read off its fused state ``[n, width]`` by two layers of 256, with the squared error.

    Parameters: 256 d + 66,305. Dropout acts on each hidden layer's output. Source: layers of Cao et al. (2022). The
    number of classes is not used.
    """
    return Regressor(feed_forward(width, 1, dropout))


def linear_regressor(width: int, classes: int, dropout: float) -> Regressor:
    """One number an example from one linear map of its fused state ``[n, width]``, with the squared error.

    Parameters: d + 1. Dropout acts on the fused states. Source: fine-tuning of Devlin et al. (2019), without pooler.
    The number of classes is not used.
    """
    return Regressor(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, 1)))
