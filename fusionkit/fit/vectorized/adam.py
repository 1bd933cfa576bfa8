"""Adam over a stack of runs: one fused kernel, each run with its own rate, decay and clipping.

Source: Kingma and Ba (2015); with decoupled decay Loshchilov and Hutter (2019). The step is ``torch.optim``'s own
functional one, so that a run in a stack takes the steps of a run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor
from torch.optim.adam import adam

from fusionkit.specs import RunSpec

BETAS, EPS = (0.9, 0.999), 1e-8
FUSED = ("cpu", "cuda", "mps", "xpu")  # devices that have the kernel
Piece = tuple[slice, float]  # neighbouring runs with the same rate at every step, and their decay


class StackedAdam:
    """Adam's moments of weights ``[R, …]``, one tensor per weight.

    Args:
        leaves: the weights, contiguous; :meth:`step` changes them in place. decoupled: AdamW, else Adam. pieces: a
            partition of the runs; each piece takes its step in one call.
    """

    def __init__(self, leaves: Sequence[Tensor], decoupled: bool, pieces: Sequence[Piece]) -> None:
        self._leaves = [leaf.detach() for leaf in leaves]  # the same memory, without autograd
        self._means = [torch.zeros_like(leaf) for leaf in self._leaves]
        self._squares = [torch.zeros_like(leaf) for leaf in self._leaves]
        self._decoupled = decoupled
        self._cut(pieces, 0.0)

    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float] | Tensor, limits: Tensor | None) -> None:
        """One step of every run.

        Args:
            gradients: ``[R, …]`` per leaf; None where the loss did not depend on it. rates: one per run; on a GPU a
                tensor, which a recorded step reads at every replay. limits: as :func:`limits_of` returns them.
        """
        with_gradient = [k for k, gradient in enumerate(gradients) if gradient is not None]
        # The kernel ignores strides.
        found = [gradient.contiguous() for gradient in gradients if gradient is not None]
        if limits is not None:
            found = clipped(found, limits)
        for (piece, decay), counts in zip(self._pieces, self._counts, strict=True):
            adam(
                [self._leaves[k][piece] for k in with_gradient],
                [gradient[piece] for gradient in found],
                [self._means[k][piece] for k in with_gradient],
                [self._squares[k][piece] for k in with_gradient],
                [],
                [counts[k] for k in with_gradient],
                fused=self._leaves[0].device.type in FUSED,
                decoupled_weight_decay=self._decoupled,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=rates[piece.start],
                weight_decay=decay,
                eps=EPS,
                maximize=False,
            )

    def keep(self, leaves: Sequence[Tensor], runs: Tensor, pieces: Sequence[Piece]) -> None:
        """Keep only these runs, int64 ``[R']``; ``leaves`` are new tensors with their weights."""
        self._leaves = [leaf.detach() for leaf in leaves]
        self._means = [mean[runs] for mean in self._means]
        self._squares = [square[runs] for square in self._squares]
        self._cut(pieces, max((float(count) for counts in self._counts for count in counts), default=0.0))

    def _cut(self, pieces: Sequence[Piece], steps: float) -> None:
        self._pieces = list(pieces)
        # The kernel increments these step counts in place, one per tensor.
        self._counts = [
            list(torch.full((len(self._leaves),), steps, device=self._leaves[0].device)) if self._leaves else []
            for _ in pieces
        ]


def clipped(gradients: Sequence[Tensor], limits: Tensor) -> list[Tensor]:
    """Each run's gradients scaled down to its largest norm, as ``torch.nn.utils.clip_grad_norm_`` does for one model.

    Not in place: for weights that are added to each other, autograd may return one gradient in the same memory.

    Args:
        limits: the largest norms, float ``[R]``; infinity means no clipping.
    """
    squares = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients]).sum(0)  # [R]
    factors = (limits / (squares.sqrt() + 1e-6)).clamp(max=1.0)  # [R]
    # Without a limit the factor is 1: where the squared norm is infinite, inf / inf would make the gradients NaN.
    factors = torch.where(limits.isinf(), 1.0, factors)
    return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def limits_of(clips: Sequence[float | None], device: torch.device) -> Tensor | None:
    """The largest norms, float ``[R]``, for :func:`clipped`; None where no run has ``clip_norm``."""
    if all(clip is None for clip in clips):
        return None
    return torch.tensor([float("inf") if clip is None else clip for clip in clips], device=device)


def pieces_of(specs: Sequence[RunSpec]) -> list[Piece]:
    """Pieces of neighbouring runs that have the same decay, and the same rate at every step."""
    alike = attrgetter("lr", "weight_decay", "schedule", "warmup", "epochs", "max_steps", "draw_ids")
    found = [[*runs] for _, runs in groupby(range(len(specs)), lambda run: alike(specs[run]))]
    return [(slice(runs[0], runs[-1] + 1), specs[runs[0]].weight_decay) for runs in found]
