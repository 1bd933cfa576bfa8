"""A linear map of its own for every run: ``y_r = x_r W_rᵀ + b_r``.

Symbols: r a run. One batched product; where all runs read the same rows, one plain product with their matrices one
below the other, so that no run gets a copy of the rows. Gradients come in the layout of the weights, as the optimizer
reads them: what autograd makes of a batched product would have to be turned, a pass over memory that costs more than
the product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """All runs' maps.

    Args:
        x: ``[n, w]``, the same for all runs, or ``[R, n, w]``. weight: ``[R, h, w]``. bias: ``[R, h]``.

    Returns:
        ``[R, n, h]``.
    """
    found: Tensor = _Products.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):  # what is kept for backward must be as narrow as the products
            narrow = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(narrow), weight.to(narrow), bias.to(narrow)
        ctx.save_for_backward(x, weight)
        if x.dim() == 3:
            return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        found = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).mT)  # [n, R · h]
        return found.view(len(x), *bias.shape).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = gradients  # [R, n, h]
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = given @ weight if x.dim() == 3 else (given @ weight).sum(0)
        if ctx.needs_input_grad[1]:
            to_weight = given.mT @ x  # [R, h, w]
        return to_x, to_weight, given.sum(1)
