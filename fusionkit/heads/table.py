"""The table of heads, and building one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from fusionkit.errors import unknown_name
from fusionkit.heads.bcn import bcn
from fusionkit.heads.bilstm_crf import bilstm_crf
from fusionkit.heads.classifier import classifier
from fusionkit.heads.crf import Crf, crf
from fusionkit.heads.esim import esim, esim_regressor
from fusionkit.heads.linear_tagger import linear_tagger
from fusionkit.heads.lm_head import LM_HEADS
from fusionkit.heads.regressor import Regressor, regressor
from fusionkit.heads.sigmoid_classifier import Sigmoid, sigmoid_classifier
from fusionkit.heads.softmax import Softmax
from fusionkit.heads.tagger import tagger


class Head(Protocol):
    """What each head is: a module from fused states to scores, with its loss and its decision.

    The table builds each from ``(width, classes, dropout)``. One that decides by the probability of each class also
    has ``probabilities(scores)``, ``[n, classes]``; a CRF decides whole paths and has none.

    The encoder's own LM head is none of the table: it is not built but read from the store.
    """

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[n, width]`` → scores ``[n, classes]``, or ``[n, 1]`` for a number.

        ``offsets`` bound the sequences among the ``n`` rows, for a head that looks at whole ones. One that reads
        whole sequences (:func:`reads_sequences`) gives a row of scores an example: ``[examples, classes]``.
        """
        ...

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        """The mean loss of a batch; ``offsets`` bound its examples among the ``n``."""
        ...

    def decode(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """The decided classes, int64 ``[n]``; for numbers, float ``[n]``; of any number of classes a row their
        probabilities, ``[n, classes]``, which a threshold decides.
        """
        ...


AnyHead = Softmax | Crf | Regressor | Sigmoid
HEADS: dict[str, Callable[[int, int, float], AnyHead]] = {
    "classifier": classifier,
    "tagger": tagger,
    "linear-tagger": linear_tagger,
    "crf": crf,
    "bilstm-crf": bilstm_crf,
    "regressor": regressor,
    "bcn": bcn,
    "esim": esim,
    "esim-regressor": esim_regressor,
    "sigmoid-classifier": sigmoid_classifier,
}
# Heads that read all rows of an example, not one pooled row; and of how many sequences an example must be.
SEQUENCES = {"bcn": 1, "esim": 2, "esim-regressor": 2}


def build_head(name: str, width: int, classes: int, dropout: float) -> AnyHead:
    """A head with fresh weights.

    Raises:
        UsageError: an unknown name.
    """
    if name not in HEADS:
        raise unknown_name("head", name, HEADS)
    return HEADS[name](width, classes, dropout)


@cache
def decides_by_softmax(name: str) -> bool:
    """Whether a head's loss is the cross-entropy of each row alone, which class weights and label smoothing act on.

    Raises:
        UsageError: an unknown name.
    """
    if name in LM_HEADS:
        return True
    with torch.device("meta"):
        return isinstance(build_head(name, 1, 2, 0.0), Softmax)


def reads_sequences(name: str) -> bool:
    """Whether a head reads all rows of an example and gives one row of scores for it, so that nothing pools them."""
    return name in SEQUENCES
