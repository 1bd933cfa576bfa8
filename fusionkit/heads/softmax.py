"""Deciding each row of scores alone by softmax: what classifiers and plain taggers share."""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.attend import scores_of


class Softmax(nn.Module):
    """Scores of one row each, trained by cross-entropy, decided by the highest.

    Args:
        score: a module from ``[n, width]`` to ``[n, classes]``, or to a row of scores for each sequence of the rows.

    Attributes:
        label_smoothing: share of each target that the loss spreads over all classes.
        class_weights: float ``[classes]``, the weight of a row in the loss, by the row's class; None weighs all alike.
    """

    class_weights: Tensor | None

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score
        self.label_smoothing = 0.0
        # Moves with the module, but is not saved with its weights.
        self.register_buffer("class_weights", None, persistent=False)

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]`` → scores ``[n, classes]``."""
        return scores_of(self.score, states, offsets)

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean cross-entropy over the rows, weighted and smoothed as PyTorch does; 0 where there is none."""
        # The mean over nothing is NaN, and so would a run's loss be: a batch may hold only examples without words.
        if len(targets) == 0:
            return scores.sum()
        return nn.functional.cross_entropy(
            scores, targets, weight=self.class_weights, label_smoothing=self.label_smoothing
        )

    def probabilities(self, scores: Tensor) -> Tensor:
        """The probability of each class for each row, ``[n, classes]``."""
        return scores.softmax(-1)

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The best class of each row, int64 ``[n]``."""
        return scores.argmax(-1)
