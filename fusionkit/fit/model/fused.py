"""Fusion, pool and head as one module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fusionkit.dataset.batch import Batch
from fusionkit.errors import UsageError
from fusionkit.fit.model.precision import exactly, widened
from fusionkit.fusions import Fusion, build_fusion
from fusionkit.heads import build_head, reads_sequences
from fusionkit.heads.lm_head import build_lm_head
from fusionkit.heads.sigmoid_classifier import Sigmoid
from fusionkit.lm_head import LmHead
from fusionkit.ragged import segment_max, segment_mean
from fusionkit.specs import RunSpec


class FusedModel(nn.Module):
    """States of all layers → scores. The layer axis is fused first, then tokens are pooled (the papers' order).

    Where an example has two sequences (a pair stored as two), they are pooled to ``u`` and ``v``, and the head reads
    ``[u; v; |u−v|; u∗v]``, as sentence encoders are used (Conneau et al. 2017). A head that reads whole sequences gets
    all of their rows instead.

    Args:
        layers: the number of layers that the fusion reads. hidden: the width of their states. classes: the number of
            classes. sides: sequences per example, 1 or 2. lm_head: the encoder's LM head, for ``mlm``.
    """

    def __init__(
        self, spec: RunSpec, layers: int, hidden: int, classes: int, sides: int = 1, lm_head: LmHead | None = None
    ) -> None:
        super().__init__()
        if spec.pool is not None and reads_sequences(spec.head):
            raise UsageError(
                f"head {spec.head!r} pools by itself",
                expected="rows as the fusion gives them",
                received=f"pool {spec.pool!r}",
                remedy="leave the pool out",
            )
        self.fusion = build_fusion(spec.fusion, layers, hidden)
        self.layers, self.hidden, self.sides = layers, hidden, sides
        self.compares = sides == 2 and not reads_sequences(spec.head)
        width = 4 * self.fusion.width if self.compares else self.fusion.width
        if lm_head is None:
            self.head = build_head(spec.head, width, classes, spec.dropout)
        else:
            self.head = build_lm_head(spec.head, lm_head, spec.dropout)
        self.pool = spec.pool

    def forward(self, states: Tensor, offsets: Tensor, read: Tensor | None = None) -> Tensor:
        """Scores: ``[examples, classes]`` with a pool or a head that reads sequences, else ``[rows read, classes]``.

        Args:
            states: ``[rows, layers, hidden]``. offsets: int64 ``[examples · sides + 1]``, of the sequences' rows.
            read: int64 ``[rows read]``, ascending, the rows the head reads; None is all.
        """
        return self.read_out(self.fusion(states, offsets), offsets, read)

    def read_out(self, fused: Tensor, offsets: Tensor, read: Tensor | None = None) -> Tensor:
        """The scores of rows that are fused already, ``[rows, width]``; the rest as for :meth:`forward`."""
        if read is not None:
            fused, offsets = fused.index_select(0, read), torch.searchsorted(read, offsets)
        return self.head(self.pooled(fused, offsets), offsets)  # type: ignore[no-any-return]

    def pooled(self, fused: Tensor, offsets: Tensor) -> Tensor:
        """The head's input ``[n, width]``, from the fused rows that are read and their offsets."""
        if self.pool is not None:
            fused = widened(fused)  # in bfloat16 a row below 1/256 of the sum would not change it
        if self.pool == "mean":
            fused = segment_mean(fused, offsets)  # [examples · sides, width]
        elif self.pool == "max":
            fused = segment_max(fused, offsets)
        if self.compares:
            u, v = fused[0::2], fused[1::2]  # [examples, width] each
            fused = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        return fused

    @property
    def parts(self) -> dict[str, FusedModel]:
        """This model by the name ``""``: a run of one task has one head."""
        return {"": self}

    def loss(self, batch: Batch, shares: Mapping[str, float] | None = None) -> Tensor:
        """The head's mean loss of a batch; of a piece of a minibatch, times the piece's share, named ``""``."""
        loss = self.loss_of(self(batch.states, batch.offsets, batch.read), batch)
        return loss if shares is None else loss * shares[""]

    def loss_of(self, scores: Tensor, batch: Batch) -> Tensor:
        """The head's mean loss from given scores, in float32 at least."""
        with exactly(scores.device):
            loss: Tensor = self.head.loss(widened(scores), batch.targets, batch.read_offsets)
            return loss

    def decide(self, batch: Batch) -> dict[str, Tensor]:
        """The decisions of the head, ``[n]``, by the name ``""``."""
        return {"": self.head.decode(self(batch.states, batch.offsets, batch.read), batch.read_offsets)}


def build_model(
    spec: RunSpec, layers: int, hidden: int, classes: int, sides: int = 1, lm_head: LmHead | None = None
) -> FusedModel:
    """A model whose weights depend on ``init_seed`` alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(spec.init_seed)  # torch.manual_seed would seed a GPU's generators too
        return FusedModel(spec, layers, hidden, classes, sides, lm_head)


def threshold_of(model: FusedModel) -> float | None:
    """The probability above which a model's head assigns a class; None for heads that decide in another way."""
    return float(model.head.threshold) if isinstance(model.head, Sigmoid) else None


def parameters_of(module: Fusion | nn.Module, *, trained: bool = False) -> int:
    """The number of parameters of a module; ``trained`` leaves out frozen ones."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)
