"""The probability above which an example has a class: one number for all classes, the best on a split.

    micro F1 of the k likeliest pairs of an example and a class   =   2 r_k / (k + t)

Symbols: ``r_k`` how many of these pairs are right, ``t`` how many pairs are told. The threshold lies half-way between
the last pair that is taken and the next one; pairs of one probability are taken together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.heads.sigmoid_classifier import UNCHOSEN


def best_threshold(targets: NDArray[Any], gold: Sequence[Sequence[str]], likely: Tensor) -> tuple[float, float]:
    """The threshold, and the micro F1 that it has; the highest of several that are best, 0.5 where none is right.

    Args:
        targets: ``[examples, classes]``, 1 where an example has a class. gold: all labels of each example, those that
            no class was learned for among them. likely: probabilities, ``[examples, classes]``.
    """
    told = sum(map(len, gold))
    ordered, order = likely.flatten().sort(descending=True, stable=True)
    right = torch.from_numpy(targets).to(likely.device).flatten()[order].double().cumsum(0).cpu()
    ordered = ordered.cpu()
    taken = torch.arange(1, len(ordered) + 1)
    f1 = 2 * right / (taken + told)
    following = torch.cat([ordered[1:], ordered.new_zeros(1)])
    f1[ordered <= following] = 0.0  # the next pair is as likely: no threshold lies between them
    if not len(f1) or not float(f1.max()):
        return UNCHOSEN, 0.0
    at = int(f1.argmax())
    last, first_left = float(ordered[at]), float(following[at])
    between = float(np.float32((last + first_left) / 2))
    return (between if between < last else first_left), float(f1[at])
