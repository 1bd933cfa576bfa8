"""What a sweep will take, before it starts: runs, units, processes, time and memory.

The time of a run is its counted one (:mod:`fusionkit.fit.executor.cost`) times the factor of its kind
(:mod:`fusionkit.fit.executor.measure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusionkit.dataset.mixture import Mix
from fusionkit.devices import device_of
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.measure import Measurements, kind_of
from fusionkit.fit.executor.plan import START_SECONDS, makespan, plan
from fusionkit.fit.executor.prepare import prepare
from fusionkit.fit.model.warm_start import WarmStart
from fusionkit.fit.sweep.fixed_draws import FixedDraws
from fusionkit.runs.claims import Claims, this_process
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.store import Store

SHOWN = (
    "task", "label", "fusion", "fusion_layers", "head", "shots", "epochs", "max_steps", "batch_size", "compute_dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Forecast:
    """What a sweep will take.

    Attributes:
        runs: all of them. there: those that need not be trained, ``failed`` of them failed. elsewhere: those that
            another process is at. units, workers: of the others. seconds: until the last is done, if nothing else runs.
        memory: bytes that one process takes at most. kinds: how many kinds of runs there are, ``sampled`` of them
            measured, now or by runs on record. parts: the runs by what they cost, with the seconds of all of them in
            one process.
    """

    runs: int
    there: int
    failed: int
    elsewhere: int
    units: int
    workers: int
    seconds: float
    memory: int
    kinds: int
    sampled: int
    parts: list[dict[str, Any]]


def forecast(
    store: Store | Mix,
    specs: Sequence[RunSpec],
    runs: RunsFolder,
    starts: Sequence[WarmStart] = (),
    draws: Sequence[FixedDraws] = (),
    workers: int | None = 1,
    retry_failed: bool = False,
    device: str = "cpu",
    known: Measurements | None = None,
) -> tuple[Forecast, list[str]]:
    """What :func:`fusionkit.fit.fit` would take, and what it would say; arguments and errors are its own.

    Args:
        known: what was measured for other sweeps; what is measured now is added.
    """
    prepared = prepare(store, specs, runs, starts, draws, retry_failed, device_of(device))
    claims = Claims(runs.path, this_process())
    missing, context = prepared.missing, prepared.context
    measured, cost = known or Measurements(), CostModel(context)
    records = {spec: runs.record(spec) for spec in prepared.there}
    measured.read({spec: record for spec, record in records.items() if record is not None}, cost)
    measured.sample(missing, cost)
    seconds = {spec: measured.factor(spec) * cost.seconds(spec) for spec in missing}
    chosen = plan(prepared, workers)
    units = [sum(seconds[spec] for spec in unit) for unit in chosen.units]
    begin = START_SECONDS + context.seconds if chosen.workers > 1 else 0.0
    parts: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in missing:
        parts.setdefault(tuple(getattr(spec, name) for name in SHOWN), []).append(spec)
    kinds = {kind_of(spec): spec for spec in missing}
    found = Forecast(
        runs=len(specs),
        there=len(prepared.there),
        failed=len(prepared.failed),
        elsewhere=sum(claims.holder(spec.digest) is not None for spec in missing),
        units=len(chosen.units),
        workers=chosen.workers,
        seconds=begin + makespan(units, chosen.workers),
        memory=cost.memory(chosen.units),
        kinds=len(kinds),
        sampled=sum(map(measured.knows, kinds.values())),
        parts=[
            dict(zip(SHOWN, key, strict=True)) | {"runs": len(alike), "seconds": sum(map(seconds.__getitem__, alike))}
            for key, alike in parts.items()
        ],
    )
    return found, prepared.notes
