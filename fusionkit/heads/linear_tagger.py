"""Token tagging by one linear map and softmax (ElNokrashy et al. 2024)."""

from __future__ import annotations

from torch import Tensor, nn

from fusionkit.heads.feed_forward import softmax_loss


class LinearTagger(nn.Module):
    """One tag a word from one linear map; dropout acts on the fused state."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes))

    def forward(self, states: Tensor) -> Tensor:
        """``[words, width]`` → scores ``[words, classes]``."""
        return self.score(states)  # type: ignore[no-any-return]

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """Mean cross-entropy over the words."""
        return softmax_loss(scores, targets)

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The best tag of each word, int64 ``[words]``."""
        return scores.argmax(-1)
