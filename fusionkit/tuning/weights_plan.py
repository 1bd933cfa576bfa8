"""What several tasks over one encoder weigh by each method, before anything is trained.

Only the encoder's configuration is read.

    multiple of the encoder = (E + n w) / E

Symbols: ``E`` the encoder's weights; ``n`` tasks; ``w`` those that a task has for itself: of the method, and of a
fusion on top of its own. Heads are not counted. A task that has all for itself has a whole encoder: n E.
Source: the counts are those of the methods put in effect on the encoder's shapes, without memory behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from fusionkit.encoder.reference import encoder_place
from fusionkit.encoder.refusals import loading_errors
from fusionkit.errors import UsageError
from fusionkit.fusions import build_fusion, fusion_layers, fusion_name
from fusionkit.methods import parse_method
from fusionkit.methods.per_task import own_names
from fusionkit.methods.structure import structure_of
from fusionkit.methods.table import MethodSpec
from fusionkit.specs import FROZEN

BYTES = 4  # float32, as trained weights are kept
MOST = 1 << 14  # the widest that a budget is filled with
ALONE = "a fine-tuned encoder a task"  # the measure of all others, whatever the budget
# What Stickland and Murray (2019) set beside each other: the method, the fusion of each task, the step of their width.
KINDS: Sequence[tuple[str, str, str, int]] = (
    ("PALs, shared over layers", "pals:{}", "last", 6),
    ("PALs of each layer", "pals:{},share=no", "last", 6),
    ("PALs, top half", "pals:{},layers={top}", "last", 6),
    ("PALs, bottom half", "pals:{},layers={bottom}", "last", 6),
    ("low rank", "low-rank:{}", "last", 1),
    ("projected attention on top", "full", "projected-attention:{}", 12),
    ("projected feed-forward on top", "full", "projected-ffn:{}", 1),
    ("adapters (Houlsby)", "houlsby:{}", "last", 1),
    ("adapters, one a layer", "houlsby:{},share=layer", "last", 1),
)
WIDTHS = (204, 84, 276, 276, 100, 204, 252, 64, 64)  # of the papers, for BERT-base


@dataclass(frozen=True)
class PlannedWeights:
    """The weights of several tasks.

    Attributes:
        kind: what it is called. method, fusion: as `fit` takes them. per_task: a task's own. trained: what all tasks
            share and train. total: of all tasks, the encoder included. multiple: of the encoder.
    """

    kind: str
    method: str
    fusion: str
    per_task: int
    trained: int
    total: int
    multiple: float

    @property
    def bytes_per_task(self) -> int:
        """Of a file with a task's own."""
        return BYTES * self.per_task


class WeightsPlan:
    """Counts over an encoder's shapes.

    Args:
        reference: a bundled name, a folder with a ``config.json``, or a hub id.

    Raises:
        EncoderError: no such configuration.

    Attributes:
        encoder: its weights. depth, hidden: its layers, and the width of its states.
    """

    def __init__(self, reference: str, tasks: int, trust_remote_code: bool = False) -> None:
        with loading_errors(reference), torch.device("meta"):
            config: Any = transformers.AutoConfig.from_pretrained(
                encoder_place(reference, None), trust_remote_code=trust_remote_code
            )
            made: Any = transformers.AutoModel.from_config  # untyped
            self._model = made(config, trust_remote_code=trust_remote_code)
        self.tasks, self.encoder = tasks, sum(weights.numel() for weights in self._model.parameters())
        self._structure = structure_of(self._model)
        self.depth, self.hidden = self._structure.depth, self._structure.hidden

    def of(self, method: str, fusion: str = "last", kind: str = "") -> PlannedWeights:
        """The weights of a method, and of a fusion of each task on top; UsageError for one the encoder cannot take."""
        spec, fusion = parse_method(method), fusion_name(fusion)
        trained, own = self._counted(spec)
        own += self._fusion(fusion)
        total = self.encoder + self.tasks * own
        return PlannedWeights(kind or str(spec), str(spec), fusion, own, trained, total, total / self.encoder)

    def alone(self) -> PlannedWeights:
        """A whole encoder for each task."""
        total = self.tasks * self.encoder
        every = (self.encoder, 0, total, total / self.encoder)
        return PlannedWeights(ALONE, "full", "last", *every)

    def usual(self, budget: int | None = None) -> list[PlannedWeights]:
        """All kinds, of the papers' widths, or as wide as a budget of weights a task allows; those that fit none are
        left out.
        """
        found = [self.alone(), self.of("full", kind="all shared, heads alone differ"), self.of(FROZEN, "linear")]
        found.append(self.of("full", "extra-layers:1", "a transformer layer on top"))
        for (kind, method, fusion, step), usual in zip(KINDS, WIDTHS, strict=True):
            width = usual if budget is None else self._widest(method, fusion, step, budget)
            if width:
                found.append(self.of(self._spelled(method, width), self._spelled(fusion, width), kind))
        return found if budget is None else [each for each in found if each.per_task <= budget or each.kind == ALONE]

    def _widest(self, method: str, fusion: str, step: int, budget: int) -> int:
        """The largest width, a multiple of ``step``, with at most so many weights a task; 0 for none."""
        low, high = 0, MOST // step
        while low < high:
            middle = (low + high + 1) // 2
            found = self.of(self._spelled(method, step * middle), self._spelled(fusion, step * middle))
            low, high = (middle, high) if found.per_task <= budget else (low, middle - 1)
        return step * low

    def _spelled(self, text: str, width: int) -> str:
        half = self.depth // 2
        return text.format(width, top=f"-{half}:", bottom=f"1:{half + 1}")

    def _counted(self, spec: MethodSpec) -> tuple[int, int]:
        """What all tasks share and train, and what each has for itself."""
        if spec.name == FROZEN:
            return 0, 0
        if spec.name == "diff-prune":
            raise UsageError("diff-prune cannot train several tasks in turn", remedy="plan another method")
        with torch.device("meta"):
            attached = spec.build().attach(self._model, self._structure)
        own = sum(attached.trainable[name].numel() for name in own_names(attached.trainable, spec))
        trained = attached.count()
        attached.detach()
        return trained - own, own

    def _fusion(self, name: str) -> int:
        layers = fusion_layers(name, tuple(range(self.depth + 1)), self.depth + 1)
        with torch.device("meta"):
            made: Any = build_fusion(name, len(layers), self.hidden)
        return sum(weights.numel() for weights in made.parameters())
