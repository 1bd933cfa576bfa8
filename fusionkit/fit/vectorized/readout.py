"""Scores and losses of many runs at once, for heads whose scores are a chain of linear layers, ReLU and dropout.

    x_r,k+1 = f_k(x_r,k W_rkᵀ + b_rk)
    L_r     = Σ_n l_rn / Σ_n w_y(n)        l_rn the n-th row's cross-entropy as PyTorch has it, weighted and smoothed

Symbols: r a run, k a layer of the chain, ``f`` ReLU, dropout or nothing; n a row with a target, y(n) its class, w the
class weights, 1 where there are none.

On a CPU many rows are scored one run after another instead: the values between two layers then stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.dataset.batch import FILLING
from fusionkit.fit.vectorized.dropout import RunDropout
from fusionkit.fit.vectorized.run_linear import products
from fusionkit.heads.crf import Crf
from fusionkit.heads.regressor import Regressor
from fusionkit.heads.softmax import Softmax

Step = tuple[str, nn.Module]  # the prefix of its weights' names, and the module
MANY_ROWS = 256
LARGE = 1 << 14  # a matrix of at least so many numbers is worth one call per run


def chain_of(score: nn.Module) -> list[Step] | None:
    """The steps of a chain; None for any other module. ``nn.Dropout`` occurs in a model that is not stacked."""
    steps = [("", score)]
    if type(score) is nn.Sequential:
        # Not named_children(), which leaves out a module that stands in the chain for the second time.
        steps = [(f"{name}.", step) for name, step in score._modules.items() if step is not None]
    linear = [type(step) is nn.Linear and step.bias is not None for _, step in steps]
    known = [type(step) in (nn.ReLU, nn.Dropout, RunDropout) for _, step in steps]  # a subclass may compute otherwise
    return steps if any(linear) and all(a or b for a, b in zip(linear, known, strict=True)) else None


def chain_of_head(head: nn.Module) -> list[Step] | None:
    """The steps of a head whose scores are those of a chain; None for other heads, and for a user's own."""
    return chain_of(head.get_submodule("score")) if type(head) in (Softmax, Crf, Regressor) else None


def chained(steps: Sequence[Step], weights: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """The scores of all runs, ``[R, n, classes]``.

    Args:
        weights: ``[R, …]`` by name. rows: ``[n, width]``, the same for all runs, or ``[R, n, width]``.
    """
    first, *more = (weights[f"{name}weight"] for name, step in steps if isinstance(step, nn.Linear))
    runs = len(first)
    cached = rows.device.type == "cpu" and len(more) > 0  # one layer has no values between layers
    large = runs > 1 and rows.shape[-2] >= MANY_ROWS and first[0].numel() >= LARGE
    if cached and large and not torch.is_grad_enabled():
        one_by_one = [
            chained(
                steps,
                {name: own[run : run + 1] for name, own in weights.items()},
                rows if rows.dim() == 2 else rows[run : run + 1],
            )
            for run in range(runs)
        ]
        return torch.cat(one_by_one)
    x = rows
    for name, step in steps:
        if isinstance(step, nn.Linear):
            x = products(x, weights[f"{name}weight"], weights[f"{name}bias"])
        elif isinstance(step, RunDropout):
            x = step.stacked(x)
        elif isinstance(step, nn.ReLU) and x is not rows and not torch.is_grad_enabled():
            x = x.relu_()
        else:
            x = step(x)
    return x


def cross_entropies(head: Softmax, scores: Tensor, targets: Tensor) -> Tensor:
    """The loss of :meth:`Softmax.loss` for each run, float ``[R]``.

    Under ``torch.func.vmap`` PyTorch would decompose this loss in Python and import SymPy for it: half a second per
    process.

    Args:
        head: the head, with the class weights and the smoothing of all runs. scores: ``[R, n, classes]``. targets:
            int64 ``[n]``, the same for all runs, or ``[R, n]``; rows with :data:`~fusionkit.dataset.batch.FILLING`
            are left out.
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
    total = weighed.sum(-1)
    # A minibatch of examples without words has no target: its loss is 0, as on a CPU, and not 0 / 0.
    return rows.view(len(scores), -1).sum(1) / torch.where(total > 0, total, 1)  # [R]
