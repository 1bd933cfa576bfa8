"""Loading finished runs: their records, and their fusions and heads with the trained weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from fusionkit.errors import FusionkitError, UsageError, first_line
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import JointModel, model_of
from fusionkit.fit.model.own_code import own_parts, sources_of, warn_of_sources
from fusionkit.fit.model.record_shape import misfit
from fusionkit.fusions import sees_examples
from fusionkit.io.files import checked_bytes, damaged, read_json
from fusionkit.runs.find_run import find_run
from fusionkit.runs.folder import DELTA, RECORD, WEIGHTS
from fusionkit.runs.record import is_floor, others_of
from fusionkit.runs.records_file import TAKEN_FROM
from fusionkit.specs import RunSpec
from fusionkit.tasks import TASKS, parts_of

NEEDED = ("spec", "encoder", "rows", "layers", "labels", "default", "hidden", "sides", "encoding", "weights_sha256")
AGAIN = "delete the run's folder and run the same `fusionkit fit` again"


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """One finished run, ready to score states.

    Attributes:
        labels: class names in the order of the scores. default: the tag of words without a row. layers: the encoder's
            layers that its fusion reads. encoding: the identity of the encoder and the form of its input. digest: the
            run's name. whole: the module whose weights were kept: the model, or the model of all tasks of a run. name:
            the name of this task, where a run has several. others: its other tasks by their names; the spec of each is
            that of a single task. data: the name of the data it was trained on. delta: the file with what a method
            trained of the encoder, and its SHA-256. apart: whether each of its tasks has its own examples.
    """

    folder: Path
    spec: RunSpec
    model: FusedModel
    labels: list[str]
    default: str
    rows: str
    layers: tuple[int, ...]
    encoder: str
    encoding: dict[str, Any]
    digest: str
    whole: FusedModel | JointModel
    name: str = ""
    others: Mapping[str, TrainedRun] = dataclasses.field(default_factory=dict)
    data: str = ""
    delta: tuple[Path, str] | None = None
    apart: bool = False

    @property
    def parts(self) -> dict[str, TrainedRun]:
        """The tasks of the run by name, one for each column that it predicts."""
        return {self.name: self, **self.others}

    def of_parts(self, parts: Mapping[str, TrainedRun]) -> TrainedRun:
        """The run with only these of its tasks, at least one."""
        first, *others = parts
        return dataclasses.replace(parts[first], others={name: parts[name] for name in others})

    @property
    def of_words(self) -> bool:
        """True where each word gets a label, False where each example gets one."""
        return TASKS[self.spec.task].unit == "word"

    @property
    def sees_examples(self) -> bool:
        """True where the fusion looks at all rows of an example."""
        return sees_examples(self.spec.fusion)


def open_runs(places: Iterable[str | Path]) -> list[TrainedRun]:
    """Load the runs that the user names, each once, in the order given.

    Raises:
        UsageError: there is no such run, it failed, or its record lacks what prediction needs.
        StoreError: its record or weights are damaged.
    """
    folders = dict.fromkeys(folder.resolve() for place in places for folder in find_run(place))
    return [open_run(folder) for folder in folders]


def open_run(folder: Path) -> TrainedRun:
    """Load the run in this folder; errors as :func:`open_runs`."""
    record = read_json(folder / RECORD)
    if not isinstance(record.get("spec"), dict):
        raise damaged(folder / RECORD, "a run's spec", type(record.get("spec")).__name__, "train the run again")
    if record.get("status") == "failed":
        raise UsageError(f"the run {folder} failed", received=record.get("error"), remedy="choose a finished run")
    if is_floor(record):
        raise UsageError(
            f"the run {folder} is the floor {record['spec']['fusion']}: it has no head to predict with",
            expected="a run of a fusion",
            received=record["spec"]["fusion"],
            remedy="choose another run; `fusionkit results` shows this one's scores",
        )
    if file := record.get(TAKEN_FROM):
        raise UsageError(
            f"the run {folder} has no weights: its record was taken from {file}",
            expected="a run that was trained here",
            received="scores and costs alone",
            remedy="remove that folder, then train the run: `fusionkit fit`, or `fusionkit run` without --known",
        )
    if record.get("status") == "stopped":
        raise UsageError(
            f"the run {folder} was stopped early by --halving: its weights were not kept",
            remedy="choose a finished run, or run the same `fusionkit fit` without --halving",
        )
    if record.get("spec", {}).get("task") == "mlm":
        raise UsageError(
            f"the run {folder} scores masked sub-tokens: it has nothing to predict",
            expected="a run of " + ", ".join(name for name in TASKS if name != "mlm"),
            received="a run of mlm",
            remedy="choose another run; `fusionkit results` shows this one's perplexity",
        )
    if record.get("spec", {}).get("control", False):
        raise UsageError(
            f"the run {folder} learned control labels: it has nothing to predict",
            expected="a run on the real labels",
            received="a run of --control",
            remedy="choose another run; `fusionkit results` shows this one's part in the selectivity",
        )
    if record.get("spec", {}).get("mdl") is not None:
        raise UsageError(
            f"the run {folder} coded a block for --mdl: its weights were not kept",
            remedy="choose another run; `fusionkit results` shows this one's part in the code length",
        )
    if missing := [name for name in NEEDED if name not in record]:
        raise UsageError(
            f"the run {folder} cannot be used for prediction",
            expected=f"a record with {', '.join(NEEDED)}",
            received=f"no {', '.join(missing)}",
            remedy="train it again: `fusionkit fit` with a new --out",
        )
    return run_of(record, folder / RECORD, folder / WEIGHTS)


def run_of(record: dict[str, Any], place: Path, weights: Path, remedy: str = AGAIN) -> TrainedRun:
    """The run of a record with all fields of :data:`NEEDED`, which was read at ``place``, and of a file of weights.

    Raises:
        StoreError: they do not fit together, or the weights are not the recorded ones.
    """
    if (wrong := misfit(record)) is not None:
        raise damaged(place, *wrong, remedy)
    try:
        spec, layers = RunSpec.from_dict(record["spec"]), tuple(record["layers"])
        parts = parts_of(spec)
        name, *more = parts
        told = {name: record} | {other: others_of(record)[other] for other in more}
    except (KeyError, TypeError, ValueError, FusionkitError) as error:
        raise damaged(place, "a run's record", first_line(error), remedy) from error
    sources_of(spec)  # code that cannot be imported is no damage, so this raises its own error
    content = checked_bytes(weights, record["weights_sha256"], "the run's weights", remedy)
    try:
        classes = {part: len(found["labels"]) for part, found in told.items()}
        sides = {part: found.get("sides", record["sides"]) for part, found in told.items()}
        _refuse_larger(spec, len(layers), record["hidden"], classes, sides, len(content))
        model = model_of(spec, len(layers), record["hidden"], classes, sides)
    except (KeyError, TypeError, ValueError, FusionkitError) as error:
        raise damaged(place, "a run's record", first_line(error), remedy) from error
    _load_weights(model, content, weights, remedy)
    warn_of_sources(spec, record.get("sources"))
    trained = record.get("delta_sha256")
    shared = {
        "delta": None if trained is None else (place.parent / DELTA, trained),
        "folder": place.parent, "rows": record["rows"], "layers": layers, "encoder": record["encoder"],
        "digest": spec.digest, "whole": model, "data": str(record.get("data", "")),
        "apart": spec.is_multi,
    }  # fmt: skip
    runs = {
        part: TrainedRun(
            spec=parts[part], model=model.parts[part], labels=list(found["labels"]), default=found["default"],
            encoding=found.get("encoding", record["encoding"]), name=part, **shared,
        )
        for part, found in told.items()
    }  # fmt: skip
    return dataclasses.replace(runs[name], others={other: runs[other] for other in more})


def _refuse_larger(
    spec: RunSpec, layers: int, hidden: int, classes: Mapping[str, int], sides: Mapping[str, int], there: int
) -> None:
    """Refuse a model with more numbers than its weights have bytes, before memory is taken for it (ValueError)."""
    if own_parts(spec.fusion, spec.head):
        return  # a user's own code may fail on the meta device
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_of(spec, layers, hidden, classes, sides).parameters())
    if size > there:
        raise ValueError(f"a model of {size:,} numbers, its weights have {there:,} bytes")


def _load_weights(model: FusedModel | JointModel, content: bytes, path: Path, remedy: str) -> None:
    try:
        model.load_state_dict(load(content))
    except (SafetensorError, RuntimeError) as error:
        raise damaged(path, "the weights of the run's fusion and head", first_line(error), remedy) from error
    model.eval().requires_grad_(False)
