"""The table of heads, and building one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fusionkit.errors import unknown_name
from fusionkit.heads.classifier import Classifier
from fusionkit.heads.crf import Crf
from fusionkit.heads.linear_tagger import LinearTagger
from fusionkit.heads.tagger import Tagger


class Head(Protocol):
    """What each head is: a module from fused states to scores, with its loss and its decision.

    Built as ``Head(width, classes, dropout)``.
    """

    def __call__(self, states: Tensor) -> Tensor:
        """``[n, width]`` → scores ``[n, classes]``."""
        ...

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """The mean loss of a batch; ``offsets`` bound its examples among the ``n``."""
        ...

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The decided classes, int64 ``[n]``."""
        ...


HEADS: dict[str, type[Classifier | Tagger | LinearTagger | Crf]] = {
    "classifier": Classifier,
    "tagger": Tagger,
    "linear-tagger": LinearTagger,
    "crf": Crf,
}


def build_head(name: str, width: int, classes: int, dropout: float) -> Classifier | Tagger | LinearTagger | Crf:
    """A head with fresh weights.

    Raises:
        UsageError: an unknown name.
    """
    if name not in HEADS:
        raise unknown_name("head", name, HEADS)
    return HEADS[name](width, classes, dropout)
