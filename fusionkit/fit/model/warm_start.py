"""Starting a run from the weights of a trained one (fusion, head or both), and freezing a part of a run.

The classes of two heads are matched by name. The weights of a class (a row of the last layer, a CRF's transitions) go
to the class of the same name.

Source: the fusion of one language, frozen, under a head of another is table 4 of Cao et al. (2022).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusionkit.errors import UsageError
from fusionkit.fit.model.checkpoint import TrainedRun, open_runs
from fusionkit.fit.model.fused import FusedModel, parameters_of
from fusionkit.fit.model.joint import Model, Sides, model_of
from fusionkit.heads import build_head
from fusionkit.plural import counted, few
from fusionkit.specs import RunSpec
from fusionkit.store.same_encoder import shown_identity
from fusionkit.tasks import parts_of

Layers = tuple[int, ...]
open_starts = open_runs  # the public name, in `fusionkit.fit`


def with_starts(
    specs: Sequence[RunSpec],
    layers: Sequence[Layers],
    encoder: Mapping[str, Any],
    starts: Sequence[TrainedRun],
    part: str,
) -> list[RunSpec]:
    """Each run with the run that it starts from: of the suitable ones, the one with its task, label, fusion and seeds.

    Args:
        layers: the encoder's layers that each run reads. encoder: the identity of the stores' encoder. part: the part
            that is taken, ``fusion``, ``head`` or ``both``.

    Raises:
        UsageError: none suits a run, or several suit it equally.
    """
    chosen = [_one_for(spec, read, encoder, starts, part) for spec, read in zip(specs, layers, strict=True)]
    return [
        dataclasses.replace(spec, init_from=start.digest, init_part=part)
        for spec, start in zip(specs, chosen, strict=True)
    ]


def check_start(model: Model, spec: RunSpec, start: TrainedRun, labels: Mapping[str, Sequence[str]]) -> None:
    """Refuse, as UsageError, a head whose classes differ from those of the run's tasks, ``labels`` by task name, and
    weights of other shapes than those of the run's model.
    """
    for name, part in parts_of(spec).items():
        ours, run = set(labels[name]), start.parts.get(name, start)
        if spec.init_part == "fusion" or ours == (theirs := set(run.labels)):
            _taken(model.parts[name], part, run, labels[name])
            continue
        here, there = sorted(ours - theirs), sorted(theirs - ours)
        raise UsageError(
            f"the head of {run.folder} has other classes than {part.label!r} here",
            expected=f"the same {counted(len(labels[name]), 'name')}"
            + (f"; only here: {few(here, 6)}" if here else ""),
            received=counted(len(run.labels), "name") + (f"; only there: {few(there, 6)}" if there else ""),
            remedy="choose --init-part fusion to start with a fresh head",
        )


def load_start_weights(
    model: Model, spec: RunSpec, start: TrainedRun | None, labels: Mapping[str, Sequence[str]]
) -> None:
    """Put a trained run's weights into a fresh model, task by task, and freeze what the spec says; UsageError where
    they have another shape or other classes than ``labels``, the names of the classes in order, by task.

    A task starts from the task of its name, else from the first, whose fusion suits any task.
    """
    if start is not None:
        check_start(model, spec, start, labels)
    for name, part in parts_of(spec).items():
        own = model.parts[name]
        if start is not None:
            taken = _taken(own, part, start.parts.get(name, start), labels[name])
            own.load_state_dict(own.state_dict() | taken)
        for frozen, module in (("fusion", own.fusion), ("head", own.head)):
            if part.freeze in (frozen, "both"):
                for weights in module.parameters():
                    weights.requires_grad_(False)


def _taken(model: FusedModel, spec: RunSpec, run: TrainedRun, labels: Sequence[str]) -> dict[str, Tensor]:
    """The weights that a model takes from a run, by name."""
    ours, theirs = model.state_dict(), run.model.state_dict()
    if spec.init_part != "fusion":
        theirs |= _by_name(spec, model.fusion.width, run, labels)
    taken = {name: tensor for name, tensor in theirs.items() if spec.init_part in ("both", name.split(".")[0])}
    for name, tensor in taken.items():
        if name not in ours or ours[name].shape != tensor.shape:
            raise UsageError(
                f"the {name.split('.')[0]} of {run.folder} has weights of another shape",
                expected=f"{name} {list(ours[name].shape)}" if name in ours else f"no {name}",
                received=f"{name} {list(tensor.shape)}",
                remedy="start from a run with the same options",
            )
    return taken


def starting_notes(spec: RunSpec, layers: int, hidden: int, classes: Mapping[str, int], sides: Sides) -> list[str]:
    """Notes before a run with a frozen part: which part has random weights, and that nothing is learned."""
    if spec.freeze is None:
        return []
    with torch.device("meta"):
        model = model_of(spec, layers, hidden, classes, sides)
    load_start_weights(model, spec, None, {})
    fusion, head = parameters_of(model.fusion), parameters_of(model.head)
    notes = [
        f"--freeze {part}: it was not taken from a trained run and stays as it is made at the start"
        for part, size in (("fusion", fusion), ("head", head))
        if size and spec.freeze in (part, "both") and spec.init_part not in (part, "both")
    ]
    if spec.is_frozen and not parameters_of(model, trained=True):
        notes.append(f"{spec.fusion} with --freeze {spec.freeze}: nothing is left to train, so it is only scored")
    return notes


def _one_for(
    spec: RunSpec, layers: Layers, encoder: Mapping[str, Any], starts: Sequence[TrainedRun], part: str
) -> TrainedRun:
    differing = [_differing(spec, layers, encoder, start, part) for start in starts]
    found = [start for start, fields in zip(starts, differing, strict=True) if not fields]
    if not found:
        what = f"{starts[0].folder}" if len(starts) == 1 else f"any of the {len(starts)} runs"
        alike = min(differing, key=len)
        raise UsageError(
            f"a run with fusion {spec.fusion!r} cannot start from {what}; what differs: {', '.join(alike)}",
            expected=", ".join(f"{name} {ours}" for name, (ours, _) in alike.items()),
            received=", ".join(f"{name} {theirs}" for name, (_, theirs) in alike.items()),
            remedy="start from a run with the same, or take less of it with --init-part",
        )
    for names in (("task", "label"), ("fusion",), ("init_seed",), ("data_seed",)):
        same = [start for start in found if all(getattr(start.spec, n) == getattr(spec, n) for n in names)]
        found = same or found
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} runs suit fusion {spec.fusion!r}, seed {spec.init_seed}, to start from",
            expected="one",
            received=", ".join(start.folder.name for start in found[:6]) + ("…" if len(found) > 6 else ""),
            remedy="name one with --init-from RUNS/DIGEST, or a folder that holds one for each seed",
        )
    return found[0]


def _differing(
    spec: RunSpec, layers: Layers, encoder: Mapping[str, Any], run: TrainedRun, part: str
) -> dict[str, tuple[Any, Any]]:
    """The fields that rule a run out as a start, each with the wanted and the found value."""
    theirs = run.encoding["encoder"]
    # A run with a delta learned over another encoder, so its weights are of no use here.
    method = {} if run.delta is None else {"method": ("frozen", run.spec.method)}
    ours = shown_identity(encoder)
    fields = method | {name: (ours[name], value) for name, value in shown_identity(theirs).items()}
    if part != "head":
        fields["fusion"] = (spec.fusion, run.spec.fusion)
        if len(parts_of(spec)) > 1 and len(run.parts) > 1:
            fields["joint_fusion"] = (spec.joint_fusion, run.spec.joint_fusion)
        fields["layers"] = (",".join(map(str, layers)), ",".join(map(str, run.layers)))
    if part != "fusion":
        wanted = {name: each.head for name, each in parts_of(spec).items()}
        found = {name: each.spec.head for name, each in run.parts.items()}
        if len(wanted) == 1:  # from a start with several tasks the first one's head is taken
            wanted, found = {"": spec.head}, {"": run.spec.head}
        fields["head"] = tuple(  # type: ignore[assignment]
            " + ".join(f"{name}={head}" if name else head for name, head in heads.items()) for heads in (wanted, found)
        )
    return {name: pair for name, pair in fields.items() if pair[0] != pair[1]}


def _by_name(spec: RunSpec, width: int, run: TrainedRun, labels: Sequence[str]) -> dict[str, Tensor]:
    """The weights of a run's head by their names in the model, with classes in the order of ``labels``.

    The axes that run over classes are found by building the head for one class more: these axes grow.
    """
    weights = {name: tensor for name, tensor in run.model.state_dict().items() if name.startswith("head.")}
    if list(labels) == run.labels:
        return weights
    with torch.device("meta"):
        these, more = (
            build_head(spec.head, width, classes, spec.dropout).state_dict()
            for classes in (len(labels), len(labels) + 1)
        )
    order = torch.tensor([run.labels.index(name) for name in labels], dtype=torch.int64)
    for name, tensor in weights.items():
        sizes, larger = these[name.removeprefix("head.")].shape, more[name.removeprefix("head.")].shape
        for axis in (k for k, size in enumerate(sizes) if larger[k] != size):
            tensor = tensor.index_select(axis, order)
        weights[name] = tensor
    return weights
