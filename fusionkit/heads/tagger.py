"""Token tagging: two feed-forward layers of 256, then softmax at each word (Cao et al. 2022, without CRF)."""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.feed_forward import feed_forward, softmax_loss


class Tagger(nn.Module):
    """One tag a word, each decided alone."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.score = feed_forward(width, classes, dropout)

    def forward(self, states: Tensor) -> Tensor:
        """``[words, width]`` → scores ``[words, classes]``."""
        return self.score(states)  # type: ignore[no-any-return]

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean cross-entropy over the words."""
        return softmax_loss(scores, targets)

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The best tag of each word, int64 ``[words]``."""
        return scores.argmax(-1)
