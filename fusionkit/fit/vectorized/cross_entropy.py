"""The cross-entropies of many runs at once, which is what :class:`~fusionkit.heads.softmax.Softmax` learns by.

    L_r = Σ_n l_rn / Σ_n w_y(n)        l_rn the n-th row's loss as PyTorch has it, weighted and smoothed

Symbols: r a run, n a row with a target; y(n) its class, w the class weights, 1 where there are none. Under
``torch.func.vmap`` PyTorch takes this loss apart in Python, for which it imports SymPy: half a second in each process.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusionkit.dataset.batch import FILLING
from fusionkit.heads.softmax import Softmax


def cross_entropies(head: Softmax, scores: Tensor, targets: Tensor) -> Tensor:
    """What :meth:`Softmax.loss` gives for each run, float ``[R]``.

    Args:
        head: whose weights and smoothing all runs have. scores: ``[R, n, classes]``. targets: int64 ``[n]``, the same
            for all runs, or ``[R, n]``; :data:`~fusionkit.dataset.batch.FILLING` counts for nothing.
    """
    if not scores.shape[1]:
        return scores.flatten(1).sum(1)
    each = targets.expand(len(scores), -1).flatten()
    weight = head.class_weights
    rows = functional.cross_entropy(
        scores.flatten(0, 1), each, weight, ignore_index=FILLING, reduction="none", label_smoothing=head.label_smoothing
    )
    counted = targets != FILLING
    weighed = counted if weight is None else torch.where(counted, weight[targets.clamp(min=0)], 0.0)
    return rows.view(len(scores), -1).sum(1) / weighed.sum(-1)  # [R]
