"""Runs that take each step together but are not stacked: one model after another over the same minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.joint import Model
from fusionkit.fit.model.precision import products_in
from fusionkit.fit.vectorized.adam import StackedAdam, limits_of, pieces_of
from fusionkit.fit.vectorized.dropout import generator_of
from fusionkit.fit.vectorized.run_linear import with_run_linear
from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.devices import home_of
from fusionkit.specs import FLOAT32, RunSpec


class LoopedRuns:
    """Models one after another over the same minibatch. Each has the random numbers that it would have alone.

    ``step``, ``decide``, ``weights``, ``model`` and ``keep`` are those of
    :class:`~fusionkit.fit.vectorized.stack.Stacked`.
    """

    def __init__(self, specs: Sequence[RunSpec], models: Sequence[Model]) -> None:
        self.specs = list(specs)
        self._models = list(models)
        for spec, model in zip(specs, models, strict=True):
            if spec.compute_dtype != FLOAT32:
                with_run_linear(model, stacked=False)
        self._learned = [[p for p in model.parameters() if p.requires_grad] for model in models]
        self.learns, self.device = bool(self._learned[0]), home_of(models[0])
        self._adams: list[StackedAdam | None] = [None] * len(models)  # runs that are only scored need no moments
        self._random = [generator_of(spec.init_seed, self.device).get_state() for spec in specs]

    def step(self, batches: Sequence[Batch], rates: Sequence[float | None]) -> Tensor:
        of_seed = dict(zip(dict.fromkeys(spec.data_seed for spec in self.specs), batches, strict=True))
        losses = []
        for run, (spec, model, learned, rate) in enumerate(
            zip(self.specs, self._models, self._learned, rates, strict=True)
        ):
            if rate is None:  # the run is done: its buffers, like a batch norm's, must not change either
                losses.append(torch.zeros((), device=self.device))
                continue
            if (adam := self._adams[run]) is None:
                leaves = [p.unsqueeze(0) for p in learned]
                adam = self._adams[run] = StackedAdam(leaves, spec.optimizer == "adamw", pieces_of([spec]))
            if not model.training:  # the call visits all modules
                model.train()
            with in_float32(spec.compute_dtype, self.device):
                with self._dropout_of(run), products_in(spec.compute_dtype, self.device, stacked=False):
                    loss = model.loss(of_seed[spec.data_seed])
                gradients = torch.autograd.grad(loss, learned, allow_unused=True)
            adam.step(
                [None if g is None else g.unsqueeze(0) for g in gradients],
                [rate],
                limits_of([spec.clip_norm], self.device),
            )
            losses.append(loss.detach())
        return torch.stack(losses)

    @contextmanager
    def _dropout_of(self, run: int) -> Iterator[None]:
        """Let dropout draw from a run's own generator in this context; the global generator is left unchanged."""
        everybody = torch.default_generator
        if self.device.type == "cuda":  # of this GPU, which need not be the first
            everybody = torch.cuda.default_generators[torch.empty(0, device=self.device).get_device()]
        before = everybody.get_state()
        everybody.set_state(self._random[run])
        try:
            yield
            self._random[run] = everybody.get_state()
        finally:
            everybody.set_state(before)

    def decide(self, batch: Batch, rows: int = 0) -> Tensor:
        return torch.stack([next(iter(model.eval().decide(batch).values())) for model in self._models])

    def weights(self, run: int) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._models[run].state_dict().items()}

    def model(self, run: int) -> Model:
        return self._models[run]

    def keep(self, runs: Sequence[int]) -> None:
        for name in ("specs", "_models", "_learned", "_adams", "_random"):
            setattr(self, name, [getattr(self, name)[run] for run in runs])
