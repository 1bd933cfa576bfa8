"""Runs of several tasks: one run learns several columns, with a head for each.

    loss = sum over tasks of the loss of its head

Each loss is that of the head alone: the mean over examples for a classifier, over words for a tagger, over sentences
for a CRF. Each task starts with the weights that a run of this task alone would have; where each task has its own
fusion, it learns what that run learns.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.lm_head import LmHead
from fusionkit.specs import RunSpec
from fusionkit.tasks import parts_of

Sides = int | Mapping[str, int]  # sequences per example: for all tasks, or by task


class JointModel(nn.Module):
    """Several heads over one fusion, or each over its own; ``classes`` are the numbers of classes by task.

    Attributes:
        parts: each task's fusion and head, by the task's name. fusion, head: the same modules by the names of a run's
            weights: ``fusion.…`` for a shared fusion, else ``fusion.intent.…`` and ``fusion.slots.…``.
    """

    def __init__(self, spec: RunSpec, layers: int, hidden: int, classes: Mapping[str, int], sides: Sides = 1) -> None:
        super().__init__()
        # PyTorch does not look into a plain dict, so that no weight has two names.
        self.parts = {
            name: build_model(part, layers, hidden, classes[name], _sides(sides, name))
            for name, part in parts_of(spec).items()
        }
        # Where each task keeps its own best epoch, each has its own fusion too.
        self.shared = spec.joint_fusion == "shared" and spec.choose_epoch == "mean"
        first = next(iter(self.parts.values())).get_submodule("fusion")
        fusions = {name: part.get_submodule("fusion") for name, part in self.parts.items()}
        if self.shared:
            for part in self.parts.values():
                part.add_module("fusion", first)
        self.fusion = first if self.shared else _named(fusions)
        self.head = _named({name: part.get_submodule("head") for name, part in self.parts.items()})

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The scores of each task by its name, ``[examples, classes]``, or ``[words, tags]`` for tags."""
        first, *_ = self.parts.values()
        shared = first.fusion(batch.states, batch.offsets) if self.shared else None  # [rows, width]
        found = {}
        for name, own in batch.parts.items():
            part = self.parts[name]
            fused = part.fusion(batch.states, batch.offsets) if shared is None else shared
            found[name] = part.read_out(fused, own.offsets, own.read)
        return found

    def loss(self, batch: Batch, shares: Mapping[str, float] | None = None) -> Tensor:
        """The sum of all heads' losses; of a piece of a minibatch, each times the piece's share for that task."""
        found = self(batch)
        losses = {name: self.parts[name].loss_of(found[name], own) for name, own in batch.parts.items()}
        if shares is not None:
            losses = {name: loss * shares[name] for name, loss in losses.items()}
        first, *others = losses.values()
        return sum(others, start=first)

    def decide(self, batch: Batch) -> dict[str, Tensor]:
        """The decisions of each task's head, by the task's name."""
        found = self(batch)
        return {name: self.parts[name].head.decode(found[name], own.read_offsets) for name, own in batch.parts.items()}


Model = FusedModel | JointModel


def model_of(
    spec: RunSpec,
    layers: int,
    hidden: int,
    classes: Mapping[str, int],
    sides: Sides = 1,
    lm_head: LmHead | None = None,
) -> Model:
    """The model that a run trains; its weights depend on ``init_seed`` alone.

    Args:
        classes: the number of labels of each task, by its name; ``""`` for a single task. sides: sequences per example,
            for all tasks or by their names. lm_head: the encoder's LM head.
    """
    if len(parts_of(spec)) > 1:
        return JointModel(spec, layers, hidden, classes, sides)
    return build_model(spec, layers, hidden, classes[""], _sides(sides, ""), lm_head)


def _sides(sides: Sides, name: str) -> int:
    return sides if isinstance(sides, int) else sides[name]


def _named(modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
    """A ``ModuleDict`` that takes every name: the constructor of ``ModuleDict`` refuses names of its attributes, like
    ``type``.
    """
    found = nn.ModuleDict()
    found._modules.update(modules)
    return found
