"""Classification of a whole example by any number of classes: each decided alone by the sigmoid of its score.

    loss = mean over examples and classes of log(1 + e^s) − y s        p = 1 / (1 + e^−s)

Symbols: ``s`` a class's score, ``y`` 1 where the example has the class, else 0. An example has the classes whose ``p``
is above the threshold, which is one number for all classes and is chosen on validation.
Source: binary cross-entropy as PyTorch's ``BCEWithLogitsLoss``; the layers of Cao et al. (2022).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionkit.heads.attend import scores_of
from fusionkit.heads.feed_forward import feed_forward

UNCHOSEN = 0.5  # the threshold where no validation has chosen one


class Sigmoid(nn.Module):
    """Any number of classes a row.

    Args:
        score: a module from ``[n, width]`` to ``[n, classes]``.

    Attributes:
        threshold: float ``[]``, kept with the weights: a class is decided where its probability is above it.
    """

    threshold: Tensor

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score
        self.register_buffer("threshold", torch.tensor(UNCHOSEN))

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]`` → scores ``[n, classes]``."""
        return scores_of(self.score, states, offsets)

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean binary cross-entropy over rows and classes; 0 where there is none.

        Args:
            targets: float ``[n, classes]``.
        """
        if len(targets) == 0:
            return scores.sum()  # the mean over nothing is NaN
        return (nn.functional.softplus(scores) - scores * targets).mean()

    def probabilities(self, scores: Tensor) -> Tensor:
        """The probability of each class for each row, ``[n, classes]``: they need not sum to 1."""
        return scores.sigmoid()

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The probabilities of all classes, ``[n, classes]``; the caller compares them with the threshold."""
        return self.probabilities(scores)


def sigmoid_classifier(width: int, classes: int, dropout: float) -> Sigmoid:
    """Any number of labels an example, read off its fused state by two layers of 256, then a sigmoid for each class.

    Parameters: 256 d + 66,048 + 257 C. Dropout acts on each hidden layer's output. Source: layers of Cao et al. (2022).
    """
    return Sigmoid(feed_forward(width, classes, dropout))
