"""One linear map per run: ``y_r = x_r W_rᵀ + b_r``.

Symbols: r a run. It is one batched product; where all runs read the same rows, one plain product with their matrices
one below the other. Gradients come in the layout of the weights, as the optimizer reads them. Autograd's gradients of a
batched product would have to be transposed, a pass over memory that costs more than the product.

Under autocast the products are in its precision, and rows are padded with zeros to a multiple of :data:`ROWS`. A kernel
for products of low precision is made for one shape, and minibatches of words differ in shape: making kernels took 43 %
of a step of ``extra-layers:1``.

On a CPU without bfloat16 instructions factors are rounded to bfloat16 and multiplied in float32, as
:mod:`fusionkit.machine.bfloat16` does it for other products. That module sees each operation of a step in Python: a
step of ``dwatt`` took 30 % longer with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.fit.model.precision import exactly, narrowed
from fusionkit.machine.bfloat16 import has_bfloat16, is_in_float32

ROWS = 32


def products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The outputs of all runs' maps, ``[R, n, h]``, in autocast's precision where that is on.

    Args:
        x: ``[n, w]``, the same for all runs, or ``[R, n, w]``. weight: ``[R, h, w]``. bias: ``[R, h]``.
    """
    found: Tensor = _Products.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = x.shape[-2]
        if (narrow := narrowed(x.device)) is not None:
            x, weight, bias = _filled(x, narrow), weight.to(narrow), bias.to(narrow)
        ctx.save_for_backward(x, weight)
        if not _is_slow(x):
            return _mapped(x, weight, bias)[:, :rows]
        with exactly(x.device):
            return _mapped(x.float(), weight.float(), bias.float()).to(x.dtype)[:, :rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (given,) = gradients  # [R, n, h]
        x, weight = ctx.saved_tensors
        rows, dtype, to_bias = given.shape[1], x.dtype, given.sum(1)
        if x.shape[-2] != rows:
            given = _filled(given, dtype)
        if _is_slow(x):
            given, x, weight = given.float(), x.float(), weight.float()
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            each = (given @ weight).to(dtype)  # [R, n, w]
            to_x = (each if x.dim() == 3 else each.sum(0))[..., :rows, :]
        if ctx.needs_input_grad[1]:
            if x.dim() == 3:
                to_weight = given.mT @ x  # [R, h, w]
            else:  # one product for all runs: one per run takes a third longer where h is small
                flat = given.transpose(0, 1).reshape(len(x), weight.shape[0] * weight.shape[1])  # [n, R · h]
                to_weight = (flat.mT @ x).unflatten(0, weight.shape[:2])
            to_weight = to_weight.to(dtype)
        return to_x, to_weight, to_bias


def _mapped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.dim() == 3:
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    found = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).mT)  # [n, R · h]
    return found.view(len(x), *bias.shape).transpose(0, 1)


def _is_slow(factor: Tensor) -> bool:
    """Whether products of factors of this type, on this device, are slower than in float32."""
    narrow = factor.dtype == torch.bfloat16 and factor.device.type == "cpu"
    return narrow and not has_bfloat16() and not is_in_float32()


def _filled(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """``[…, n, w]`` in another precision, padded at the end with rows of zeros to a multiple of :data:`ROWS`."""
    count = rows.shape[-2]
    found = rows.new_empty(*rows.shape[:-2], -(-count // ROWS) * ROWS, rows.shape[-1], dtype=dtype)
    found[..., :count, :] = rows
    found[..., count:, :] = 0
    return found


class RunLinear(nn.Module):
    """``nn.Linear`` by :func:`products`: for one run, or, where ``stacked``, for all runs of a stack under vmap."""

    def __init__(self, linear: nn.Linear, stacked: bool) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._stacked = stacked

    def forward(self, x: Tensor) -> Tensor:
        if self._stacked:
            found: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return found
        rows = products(x.reshape(-1, x.shape[-1]), self.weight.unsqueeze(0), self.bias.unsqueeze(0))
        return rows.reshape(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """One run's map; the vmap rule computes the maps of all runs."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = (
            each if dim is None else each.movedim(dim, 0) for each, dim in zip(given, in_dims, strict=True)
        )
        own = in_dims[0] is not None  # rows of its own for each run
        rows = x.reshape(len(x), -1, x.shape[-1]) if own else x.reshape(-1, x.shape[-1])
        found = products(rows, weight, bias)  # [R, n, h]
        return found.reshape(len(weight), *x.shape[1 if own else 0 : -1], found.shape[-1]), 0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("a stack learns under vmap")


def with_run_linear(module: nn.Module, *, stacked: bool) -> None:
    """Replace every ``nn.Linear`` with a bias below a module by :class:`RunLinear`."""
    for name, child in module.named_children():
        if type(child) is nn.Linear and child.bias is not None:
            setattr(module, name, RunLinear(child, stacked))
        else:
            with_run_linear(child, stacked=stacked)
