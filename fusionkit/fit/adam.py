"""Adam over a stack of runs: one fused kernel, each run with its own rate, decay and clipping.

Source: Kingma and Ba (2015); with decoupled decay Loshchilov and Hutter (2019). The step is ``torch.optim``'s own
functional one, so that a run in a stack takes the steps of a run alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS, EPS = (0.9, 0.999), 1e-8
FUSED = ("cpu", "cuda", "mps", "xpu")  # that have the kernel


class StackedAdam:
    """The moments of weights ``[R, …]``, a tensor each.

    Args:
        leaves: the weights, contiguous; :meth:`step` changes them in place. decoupled: decay acts on the weights
            themselves (AdamW); else it is an L2 term of the gradient (Adam).
    """

    def __init__(self, leaves: Sequence[Tensor], decoupled: bool) -> None:
        self._leaves = [leaf.detach() for leaf in leaves]  # the same memory, out of autograd's sight
        self._means = [torch.zeros_like(leaf) for leaf in self._leaves]
        self._squares = [torch.zeros_like(leaf) for leaf in self._leaves]
        self._decoupled = decoupled
        self._steps = 0

    def step(
        self,
        gradients: Sequence[Tensor | None],
        rates: Sequence[float],
        decays: Sequence[float],
        clips: Sequence[float | None],
    ) -> None:
        """One step of every run; nothing has changed where memory runs out in it.

        Args:
            gradients: ``[R, …]`` a leaf; None where the loss did not depend on it. rates, decays, clips: a number a
                run; a clip of None cuts nothing.
        """
        with_gradient = [k for k, gradient in enumerate(gradients) if gradient is not None]
        # The kernel reads memory in its order, whatever the strides are.
        found = [gradient.contiguous() for gradient in gradients if gradient is not None]
        if any(clip is not None for clip in clips):
            clip_each(found, clips)
        pieces = []
        for (rate, decay), runs in groupby(range(len(rates)), lambda run: (rates[run], decays[run])):
            first, *_, last = [*runs] * 2
            # The kernel counts up what it is given, a number a tensor.
            counts = list(torch.full((len(found),), float(self._steps), device=found[0].device))
            pieces.append((slice(first, last + 1), rate, decay, counts))
        for piece, rate, decay, counts in pieces:  # neighbours of one rate take the step in one call
            adam(
                [self._leaves[k][piece] for k in with_gradient],
                [gradient[piece] for gradient in found],
                [self._means[k][piece] for k in with_gradient],
                [self._squares[k][piece] for k in with_gradient],
                [],
                counts,
                fused=self._leaves[0].device.type in FUSED,
                decoupled_weight_decay=self._decoupled,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=rate,
                weight_decay=decay,
                eps=EPS,
                maximize=False,
            )
        self._steps += 1

    def piece(self, leaves: Sequence[Tensor], runs: slice) -> StackedAdam:
        """The same for some neighbours alone, in the same memory; ``leaves`` are their weights."""
        piece = copy.copy(self)
        piece._leaves = [leaf.detach() for leaf in leaves]
        piece._means = [mean[runs] for mean in self._means]
        piece._squares = [square[runs] for square in self._squares]
        return piece

    def keep(self, leaves: Sequence[Tensor], runs: Tensor) -> None:
        """Only these runs are left: int64 ``[R']``; ``leaves`` are their weights, made anew."""
        self._leaves = [leaf.detach() for leaf in leaves]
        self._means = [mean[runs] for mean in self._means]
        self._squares = [square[runs] for square in self._squares]


def clip_each(gradients: Sequence[Tensor], clips: Sequence[float | None]) -> None:
    """Scale each run's gradients down to its norm, in place, as ``torch.nn.utils.clip_grad_norm_`` does for one."""
    squares = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients]).sum(0)  # [R]
    limits = torch.tensor([float("inf") if clip is None else clip for clip in clips], device=squares.device)
    factors = (limits / (squares.sqrt() + 1e-6)).clamp(max=1.0)  # [R]
    # Of a run that cuts nothing: a norm whose square is infinite would make its gradients NaN.
    factors = torch.where(limits.isinf(), 1.0, factors)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.dim() - 1))
