"""How many weights several tasks over one encoder need with each method, before anything is trained.

Only the encoder's configuration is read.

    multiple of the encoder = (E + n w) / E

Symbols: ``E`` the encoder's weights; ``n`` the tasks; ``w`` the weights that a task has for itself: of the method, and
of its own fusion on top. Heads are not counted. Where each task has a whole encoder for itself, they are n E.
Source: the counts are those of the methods put in effect on the encoder's shapes, without memory behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers

from fusionkit.encoder.loading import text_half
from fusionkit.encoder.reference import encoder_place
from fusionkit.encoder.refusals import loading_errors
from fusionkit.errors import UsageError
from fusionkit.fit.sweep.open_widths import OpenWidth, fill_width
from fusionkit.fusions import fusion_layers, fusion_name, fusion_parameters
from fusionkit.methods import parse_method
from fusionkit.methods.attached import Attached, refuse_checkpointing
from fusionkit.methods.per_task import own_names, refuse_turns
from fusionkit.methods.structure import structure_of
from fusionkit.methods.table import MethodSpec
from fusionkit.specs import FROZEN, RunSpec, parse_untrained
from fusionkit.tuning.live import refuse_long
from fusionkit.tuning.optimizer import layers_above

BYTES = 4  # float32, as trained weights are kept
ALONE = "a fine-tuned encoder a task"  # what others are compared with; shown whatever the budget
# What Stickland and Murray (2019) and Houlsby et al. (2019) compare: a name, the method, the fusion of each task, and
# the width, for BERT-base, that the method or the fusion leaves out.
KINDS: Sequence[tuple[str, str, str, int]] = (
    ("PALs, shared over layers", "pals", "last", 204),
    ("PALs of each layer", "pals:share=no", "last", 84),
    ("PALs, top half", "pals:layers={top}", "last", 276),
    ("PALs, bottom half", "pals:layers={bottom}", "last", 276),
    ("low rank", "low-rank", "last", 100),
    ("projected attention on top", "full", "projected-attention", 204),
    ("projected feed-forward on top", "full", "projected-ffn", 252),
    ("adapters (Houlsby)", "houlsby", "last", 64),
    ("adapters, one a layer", "houlsby:share=layer", "last", 64),
)


@dataclass(frozen=True)
class PlannedWeights:
    """The weights of several tasks.

    Attributes:
        kind: a name for people. method, fusion: as `fit` takes them. per_task: weights that each task has for itself.
            trained: weights that all tasks share and train. total: weights of all tasks, the encoder included.
            multiple: total divided by the encoder's weights.
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
        """Bytes of a file with one task's own weights."""
        return BYTES * self.per_task


class WeightsPlan:
    """Counts weights from an encoder's shapes.

    Args:
        reference: a bundled name, a folder with a ``config.json``, or a hub id.

    Raises:
        EncoderError: no such configuration.

    Attributes:
        encoder: how many weights it has. depth, hidden: how many layers it has, and the width of its states.
    """

    def __init__(
        self, reference: str, tasks: int, trust_remote_code: bool = False, revision: str | None = None
    ) -> None:
        reference, _ = parse_untrained(reference)
        place = encoder_place(reference, None)
        with loading_errors(reference), torch.device("meta"):
            config: Any = transformers.AutoConfig.from_pretrained(
                place, trust_remote_code=trust_remote_code, revision=revision
            )
            made: Any = transformers.AutoModel.from_config  # untyped
            self._model = text_half(made(config, trust_remote_code=trust_remote_code))
        self.tasks, self.encoder = tasks, sum(weights.numel() for weights in self._model.parameters())
        self._structure = structure_of(self._model)
        self.depth, self.hidden = self._structure.depth, self._structure.hidden

    def of(self, method: str, fusion: str = "last", kind: str = "", budget: int | None = None) -> PlannedWeights:
        """The weights of a method, and of a fusion of each task on top; UsageError for one the encoder cannot take.

        Args:
            budget: weights per task; it sets a width that is left out.
        """
        if budget is not None:
            method, fusion = fill_width(method, fusion, budget, self.own, self._fusion)
        spec, fusion = parse_method(method), fusion_name(fusion)
        trained, own = self._counted(spec)
        own += self._fusion(fusion)
        total = self.encoder + self.tasks * own
        return PlannedWeights(kind or str(spec), str(spec), fusion, own, trained, total, total / self.encoder)

    def own(self, method: str) -> int:
        """The weights of a method that a task has for itself; errors as of :meth:`of`."""
        return self._counted(parse_method(method))[1]

    def alone(self) -> PlannedWeights:
        """A whole encoder for each task."""
        total = self.tasks * self.encoder
        every = (self.encoder, 0, total, total / self.encoder)
        return PlannedWeights(ALONE, "full", "last", *every)

    def usual(self, budget: int | None = None) -> list[PlannedWeights]:
        """All kinds, with the papers' widths, or as wide as a budget of weights per task allows; kinds that exceed the
        budget, or that the encoder cannot take, are left out.
        """
        found = [self.alone(), self.of("full", kind="all shared, heads alone differ"), self.of(FROZEN, "linear")]
        found.append(self.of("full", "extra-layers:1", "a transformer layer on top"))
        half = self.depth // 2
        for kind, text, fusion, usual in KINDS:
            method = text.format(top=f"-{half}:", bottom=f"1:{half + 1}")
            with suppress(UsageError):  # also NothingFitsError
                if budget is not None:
                    found.append(self.of(method, fusion, kind, budget))
                    continue
                widths = [OpenWidth.of(noun, each) for noun, each in (("method", method), ("fusion", fusion))]
                method, fusion = (
                    each if width is None else width.at(usual)
                    for width, each in zip(widths, (method, fusion), strict=True)
                )
                found.append(self.of(method, fusion, kind))
        return found if budget is None else [each for each in found if each.per_task <= budget or each.kind == ALONE]

    def check(self, run: RunSpec, longest: int = 0) -> None:
        """Raise UsageError where the encoder cannot take a run's method or option, or an option would do nothing.

        Args:
            longest: sub-tokens of the longest sequence, which must leave room for the positions that the method adds.
        """
        if run.checkpointing:
            refuse_checkpointing(self._model)
        spec = parse_method(run.method)
        with self._attached(spec) as attached:
            alike = not any(layers_above(attached, name) for name in attached.trainable)
            if run.is_multi:
                refuse_turns(attached, spec)
            if (reads := self._structure.most_positions) is not None:
                refuse_long(reads, attached.positions_added, longest)
        if run.layer_decay != 1 and alike:
            raise UsageError(
                f"--layer-decay does nothing for {run.method}, which trains no weight below the last layer",
                expected="a method that trains weights of several of the encoder's layers, like full, bitfit or lora",
                received=f"--layer-decay {run.layer_decay:g} --method {run.method}",
                remedy="leave --layer-decay out",
            )
        if run.layer_decay != 1:  # one module would get the rate of layer 1
            self._structure.refuse_one_layer("--layer-decay", "leave it out, or choose another encoder")

    def _counted(self, spec: MethodSpec) -> tuple[int, int]:
        """The numbers of weights that all tasks share and train, and that each task has for itself."""
        with self._attached(spec) as attached:
            refuse_turns(attached, spec)
            own = sum(attached.trainable[name].numel() for name in own_names(attached.trainable, spec))
            return attached.count() - own, own

    @contextmanager
    def _attached(self, spec: MethodSpec) -> Iterator[Attached]:
        """A method in effect on the shapes."""
        with torch.device("meta"):
            attached = spec.build().attach(self._model, self._structure)
        try:
            yield attached
        finally:
            attached.detach()

    def _fusion(self, name: str) -> int:
        layers = fusion_layers(name, tuple(range(self.depth + 1)), self.depth + 1)
        return fusion_parameters(name, len(layers), self.hidden)


@cache
def plan_of(reference: str, revision: str | None, trust_remote_code: bool) -> WeightsPlan:
    """The plan of one task over an encoder, named as in stores; only a hub id has a revision."""
    return WeightsPlan(reference, 1, trust_remote_code, revision)
