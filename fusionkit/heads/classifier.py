"""Classification of a whole example: two feed-forward layers of 256, then softmax (Cao et al. 2022)."""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.feed_forward import feed_forward, softmax_loss


class Classifier(nn.Module):
    """One label an example, read off its fused state."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.score = feed_forward(width, classes, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """``[examples, width]`` → scores ``[examples, classes]``."""
        return self.score(states)  # type: ignore[no-any-return]

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean cross-entropy over the examples."""
        return softmax_loss(scores, targets)

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The best class of each example, int64 ``[examples]``."""
        return scores.argmax(-1)
