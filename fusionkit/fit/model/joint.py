"""Joint intent and slots: one run learns a label an example and a tag a word.

    loss = loss of the intents' head + loss of the slots' head

Both count alike, each as its head has it alone: the mean over examples for intents, over words for a tagger, over
sentences for a CRF. The heads read one fusion, or one each. Each half starts with the weights that a run of its own
would have, and with a fusion each it learns what that run learns: the loss is a sum, and they share nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor, nn

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.lm_head import LmHead
from fusionkit.specs import RunSpec


def halves_of(spec: RunSpec) -> tuple[RunSpec, RunSpec]:
    """A joint run's intents and slots, each as a run of its own."""
    (intent, slots), (label, tags) = spec.head.split("+"), spec.label.split(",")
    return (
        dataclasses.replace(spec, task="classification", label=label, head=intent),
        dataclasses.replace(spec, task="tagging", label=tags, head=slots, pool=None),
    )


class JointModel(nn.Module):
    """Two heads over one fusion, or over one each.

    Args:
        classes: how many intents and how many tags there are.

    Attributes:
        parts: intents and slots, each with its fusion and head. fusion, head: the same modules by the names that a
            run's weights have: ``fusion.…`` where both share it, else ``fusion.intent.…`` and ``fusion.slots.…``.
    """

    def __init__(self, spec: RunSpec, layers: int, hidden: int, classes: Sequence[int]) -> None:
        super().__init__()
        intent, slots = (
            build_model(half, layers, hidden, count) for half, count in zip(halves_of(spec), classes, strict=True)
        )
        self.shared = spec.joint_fusion == "shared"
        fusions = {"intent": intent.get_submodule("fusion"), "slots": slots.get_submodule("fusion")}
        if self.shared:
            slots.fusion = intent.fusion
        # In a tuple PyTorch does not see them, so that no weight has two names.
        self.parts = (intent, slots)
        self.fusion = fusions["intent"] if self.shared else nn.ModuleDict(fusions)
        self.head = nn.ModuleDict({"intent": intent.head, "slots": slots.head})

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores of the intents ``[examples, intents]`` and of the slots ``[words, tags]``."""
        intent, slots = self.parts
        told, tagged = batch.parts
        fused = intent.fusion(batch.states, batch.offsets)  # [rows, width]
        other = fused if self.shared else slots.fusion(batch.states, batch.offsets)
        return intent.read_out(fused, told.offsets, told.read), slots.read_out(other, tagged.offsets, tagged.read)

    def loss(self, batch: Batch) -> Tensor:
        """The sum of both heads' losses."""
        told, tagged = (
            part.loss_of(scores, piece)
            for part, piece, scores in zip(self.parts, batch.parts, self(batch), strict=True)
        )
        return told + tagged

    def decide(self, batch: Batch) -> tuple[Tensor, ...]:
        """Each head's decided classes, int64 ``[examples]`` and ``[words]``."""
        return tuple(
            part.head.decode(scores, piece.read_offsets)
            for part, piece, scores in zip(self.parts, batch.parts, self(batch), strict=True)
        )


Model = FusedModel | JointModel


def model_of(
    spec: RunSpec, layers: int, hidden: int, classes: Sequence[int], sides: int = 1, given: LmHead | None = None
) -> Model:
    """The model that a run trains, its weights by ``init_seed`` alone.

    Args:
        classes: how many labels there are, for a joint run of each of its two columns. given: the encoder's LM head,
            for a task that reads by it.
    """
    if spec.task == "joint":
        return JointModel(spec, layers, hidden, classes)
    return build_model(spec, layers, hidden, classes[0], sides, given)
