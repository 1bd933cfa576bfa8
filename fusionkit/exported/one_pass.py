"""Heads that share one pass of one encoder: the kind of their input, and a check that it is the same."""

from __future__ import annotations

from typing import Any

from fusionkit.errors import UsageError
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.store.manifest import input_kind
from fusionkit.store.same_encoder import COMPARED, differing, part_text


def kind_of(run: TrainedRun) -> str:
    """What a head reads: ``texts``, ``pairs`` or ``words``."""
    return input_kind(run.encoding["columns"])


def pair_as(run: TrainedRun) -> str:
    """The number of sequences of a pair: ``one`` or ``two``."""
    return str(run.encoding["pair_as"])


def answering(run: TrainedRun, takes: str) -> TrainedRun:
    """The run with only the tasks that can read this kind of input; UsageError if none can."""
    kinds = {"words": ("words", "texts")}.get(takes, (takes,))
    parts = {name: part for name, part in run.parts.items() if kind_of(part) in kinds}
    if not parts:
        raise UsageError(
            f"no task of the run {run.folder.name} reads {takes}",
            expected=f"one of {', '.join(dict.fromkeys(map(kind_of, run.parts.values())))}",
            received=takes,
            remedy="choose another --takes",
        )
    return run.of_parts(parts)


def refuse_different(runs: list[TrainedRun], takes: str) -> None:
    """Raise UsageError for runs of different encoders or sub-tokens; one pass can serve runs over different rows."""
    fields = ("compute_dtype", "max_length", "input")
    known = []
    for run in runs:
        kind = takes if run.apart else kind_of(run)
        given = f"pairs as {pair_as(run)}" if kind == "pairs" else kind
        known.append({**run.encoding, **run.encoding["encoder"], "input": given})
    for run, other in zip(runs[1:], known[1:], strict=True):
        different = [name for name in fields if known[0][name] != other[name]]
        if different := [*differing(known[0], other), *different]:
            raise UsageError(
                "these runs cannot share one pass of one encoder",
                expected=_listed(runs[0], known[0], different),
                received=_listed(run, other, different),
                remedy="predict with each encoder's and each input's runs by themselves",
            )


def _listed(run: TrainedRun, values: dict[str, Any], names: list[str]) -> str:
    found = ", ".join(f"{name} {part_text(values, name) if name in COMPARED else values[name]}" for name in names)
    return f"{run.folder.name} ({run.encoder}): {found}"
