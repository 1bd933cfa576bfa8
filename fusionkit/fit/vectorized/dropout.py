"""Dropout in a stack: each run draws from its own generator, as it would alone.

    y = x ⊙ m / (1 − p),   m ~ Bernoulli(1 − p)

Under ``torch.func.vmap`` the plain module would draw from one generator for all runs. Here a run's mask is the next
draw of its own generator, in the shape that the run alone would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class RunDropout(nn.Module):
    """``nn.Dropout`` for a stack of runs. All dropouts of the stack share one generator per run.

    Attributes:
        run: the number of the run, 0 … R − 1; it is stacked with the weights, so that vmap gives each run its own.
    """

    run: Tensor

    def __init__(self, p: float, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.p, self.generators = p, generators
        self.register_buffer("run", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        mask: Tensor = _Masks.apply(x.detach(), self.run, self)  # type: ignore[no-untyped-call]
        return x * mask

    def stacked(self, x: Tensor) -> Tensor:
        """Dropout for all runs: ``[n, width]``, the same for each, or ``[R, n, width]`` → ``[R, n, width]``."""
        if not self.training or self.p == 0:
            return x
        masks = [_draw(self, run, x.shape[-2:], x) for run in range(len(self.generators))]
        return x * torch.stack(masks)


class _Masks(torch.autograd.Function):
    """The next mask of each run. The vmap rule below draws each run's mask from its own generator."""

    @staticmethod
    def forward(x: Tensor, run: Tensor, source: RunDropout) -> Tensor:
        return _draw(source, int(run), x.shape, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, run: Tensor, source: RunDropout) -> tuple[Tensor, int]:
        own = x.shape if in_dims[0] is None else x.select(in_dims[0], 0).shape
        return torch.stack([_draw(source, int(r), own, x) for r in run.tolist()]), 0

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None


def _draw(source: RunDropout, run: int, shape: Sequence[int], like: Tensor) -> Tensor:
    generator = source.generators[run]
    kept = torch.empty(shape, dtype=like.dtype, device=generator.device).bernoulli_(1 - source.p, generator=generator)
    return kept.div_(1 - source.p).to(like.device)


def generator_of(seed: int, device: torch.device) -> torch.Generator:
    """A run's generator, on the device of its masks: a GPU's generator draws other numbers than a CPU's."""
    return torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(seed)


def with_run_dropout(module: nn.Module, generators: Sequence[torch.Generator]) -> None:
    """Replace every ``nn.Dropout`` below a module by :class:`RunDropout`; not subclasses, which may drop otherwise."""
    for name, child in [*module._modules.items()]:  # each place of a module that has several
        if type(child) is nn.Dropout:
            setattr(module, name, RunDropout(child.p, generators))
        elif child is not None:
            with_run_dropout(child, generators)
