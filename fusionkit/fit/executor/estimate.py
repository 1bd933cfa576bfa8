"""What a sweep will take, before it starts: runs, units, processes, time and memory.

The time is that of a short sample: a few steps and scorings of runs of each kind, times the steps, epochs and examples
of all. How many processes are worth their start is decided by it too, where counting alone does not tell.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusionkit.fit.executor.bounds import Bounds
from fusionkit.fit.executor.context import ContextOpener, SweepContext
from fusionkit.fit.executor.parallelism import START_SECONDS, share_out, worth_it
from fusionkit.fit.executor.prepare import Prepared
from fusionkit.fit.executor.profile import Cost, kind_of, measure
from fusionkit.fit.executor.units import GPU_WIDEST, WIDEST, Unit, plan_units
from fusionkit.fit.loader.minibatches import HELD_BYTES, held_bytes
from fusionkit.fit.train.options import length_of
from fusionkit.fit.vectorized.width import room
from fusionkit.machine import cores, spare_memory
from fusionkit.memory import out_of_memory, resident
from fusionkit.plural import counted
from fusionkit.runs.claims import Claims, myself
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

# Seconds: of a sample before a sweep, and of one that is asked for; and of one timing in it.
BRIEFLY, THOROUGHLY = 1.0, 30.0
TIMING_SECONDS = 0.1
SHARE_OF_SPARE = 0.7  # of the memory that is left for what runs learn; the rest is for states and what lies between
SHOWN = (
    "task",
    "label",
    "fusion",
    "fusion_layers",
    "head",
    "shots",
    "epochs",
    "max_steps",
    "batch_size",
    "compute_dtype",
)


class Costs:
    """What the units of a sweep cost, by a sample of each kind of run that they hold.

    Args:
        seconds: after which no further kind is sampled; the others are taken to cost the mean of those that were.

    Attributes:
        sampled: how many kinds were. kinds: how many there are.
    """

    def __init__(self, units: Sequence[Unit], materials: SweepContext, seconds: float) -> None:
        self._materials = materials
        widths: dict[RunSpec, int] = {}
        steps: Counter[RunSpec] = Counter()
        for unit in units:
            inside = Counter(self._kind(spec) for spec in unit.specs)
            widths |= {kind: max(count, widths.get(kind, 0)) for kind, count in inside.items()}
            for spec in unit.specs:
                steps[self._kind(spec)] += length_of(spec, materials.learned(spec)).steps * spec.batch_size
        began = time.monotonic()
        self._known: dict[RunSpec, Cost] = {}
        for kind, _ in steps.most_common():
            if not self._known or time.monotonic() - began < seconds:
                try:
                    self._known[kind] = measure(kind, widths[kind], materials, TIMING_SECONDS)
                except Exception as error:
                    if out_of_memory(error) is None:
                        raise
        self.sampled, self.kinds = len(self._known), len(widths)

    def run(self, spec: RunSpec) -> float:
        """Seconds of one run."""
        data, learned = self._materials.data(spec), self._materials.learned(spec)
        known = [self._known[self._kind(spec)]] if self._kind(spec) in self._known else list(self._known.values())
        return sum(cost.seconds(spec, data, learned) for cost in known) / max(len(known), 1)

    def units(self, units: Sequence[Unit]) -> list[float]:
        """Seconds of each."""
        return [sum(map(self.run, unit.specs)) for unit in units]

    def memory(self, units: Sequence[Unit]) -> int:
        """Bytes that one process takes for the largest of them."""
        at_once = [sum(self._taken(spec) for spec in unit.specs) + self._held(unit) for unit in units]
        return resident() + round(max(at_once, default=0))

    def _taken(self, spec: RunSpec) -> float:
        cost = self._known.get(self._kind(spec))
        return 0.0 if cost is None else cost.memory

    def _held(self, unit: Unit) -> int:
        """What the unit's splits take while they are held in memory; a sample's are too small to show it."""
        data = self._materials.data(unit.specs[0])
        layers = {layer for spec in unit.specs for layer in self._materials.positions(spec)}
        learned = {spec.data_seed: self._materials.learned(spec) / max(len(data.train), 1) for spec in unit.specs}
        draws = sum(learned.values()) * held_bytes(data.train, tuple(layers))
        return min(round(draws) + held_bytes(data.validation, tuple(layers)), HELD_BYTES)

    def _kind(self, spec: RunSpec) -> RunSpec:
        return kind_of(spec, self._materials.learned(spec))


@dataclass(frozen=True)
class Plan:
    """Who does what.

    Attributes:
        widest: the most runs a unit may have. opening: how workers come by the materials; None where this process
            does all.
    """

    units: list[Unit]
    widest: int
    workers: int
    opening: ContextOpener | None
    notes: list[str]


def plan(prepared: Prepared, asked: int | None, costs: Costs | None = None, *, elsewhere: bool = False) -> Plan:
    """Units and processes of the missing runs.

    Args:
        asked: so many workers; None lets cores, memory and the work decide. costs: where they are known already.
        elsewhere: the workers are other machines', each with the memory of its own, taken to be as much as here.
    """
    materials, missing = prepared.materials, prepared.missing
    bounds = Bounds(materials)
    on_cpu = materials.device.type == "cpu"
    most_runs = WIDEST if on_cpu else GPU_WIDEST
    spare = spare_memory() if on_cpu else room(materials.device, 1)
    units, widest = _fitting(missing, most_runs, 1, bounds, spare)
    alone = Plan(units, widest, 1, None, _narrowed(widest, min(most_runs, len(missing))))
    # A GPU is one process's: its runs are stacked, and another process would wait for it.
    most = min(asked or (max(cores() // torch.get_num_threads(), 1) if on_cpu else 1), len(missing))
    shared = max(min(most_runs, -(-len(missing) // max(most, 1))), 1)  # a unit for each, where there are runs
    units, widest = _fitting(missing, shared, 1 if elsewhere else most, bounds, spare)
    if (most := min(most, len(units))) <= 1:
        return alone
    if (opening := ContextOpener.of(materials)) is None:
        note = ["no other process can open these stores: this one does all"] if asked else []
        return Plan(alone.units, alone.widest, 1, None, [*alone.notes, *note])
    # The longest first: those at the end are short, so that no process is waited for long.
    units = sorted(units, key=bounds.seconds, reverse=True)
    if asked is None and (costs is not None or not _plainly_worth_it(units, most, bounds)):
        costs = costs or Costs(units, materials, BRIEFLY)
        if (spare := spare_memory()) is not None:
            most = max(min(most, spare // max(costs.memory(units), 1)), 1)
        if not worth_it(costs.units(units), most):
            return alone
    return Plan(units, widest, most, opening, _narrowed(widest, shared))


def _narrowed(widest: int, wanted: int) -> list[str]:
    """What is said where memory decides how many runs a unit has."""
    return [f"at most {counted(widest, 'run')} at once: memory"] if widest < wanted else []


def _fitting(
    missing: Sequence[RunSpec], widest: int, workers: int, bounds: Bounds, spare: int | None
) -> tuple[list[Unit], int]:
    """Units, and the most runs that one has: no wider than the weights of so many units at once have memory for.

    All models of a unit are made at its start. Linux gives memory away that it does not have and kills whoever uses it:
    no error would come that a stack could be halved by, and every start anew would end in the same way.
    """
    units = plan_units(missing, widest)
    while spare is not None and widest > 1 and workers * bounds.weights(units) > SHARE_OF_SPARE * spare:
        widest = -(-widest // 2)
        units = plan_units(missing, widest)
    return units, widest


def _plainly_worth_it(units: Sequence[Unit], workers: int, bounds: Bounds) -> bool:
    """Whether so many workers are worth their start and have the memory, however the work is counted."""
    if not worth_it([bounds.seconds(unit) for unit in units], workers):
        return False
    spare = spare_memory()
    return spare is None or workers * bounds.memory(units) <= spare


@dataclass(frozen=True)
class Forecast:
    """What a sweep will take.

    Attributes:
        runs: all of them. there: those that need not be trained, ``failed`` of them failed. elsewhere: those that
            another process is at. units, workers: of the others. seconds: until the last is done, if nothing else runs.
        memory: bytes that one process takes at most. kinds: how many kinds of runs there are, ``sampled`` of them
            measured. parts: the runs by what they cost, with the seconds of all of them in one process.
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


def forecast(prepared: Prepared, runs: RunsFolder, asked: int | None = None) -> Forecast:
    """Sample the missing runs; nothing is kept. Arguments as :func:`plan`."""
    claims = Claims(runs.path, myself())
    missing, materials = prepared.missing, prepared.materials
    costs = Costs(plan_units(missing), materials, THOROUGHLY)
    chosen = plan(prepared, asked, costs)
    seconds = share_out(costs.units(chosen.units), chosen.workers)
    begin = START_SECONDS + materials.seconds if chosen.workers > 1 else 0.0
    parts: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in missing:
        parts.setdefault(tuple(getattr(spec, name) for name in SHOWN), []).append(spec)
    return Forecast(
        runs=len(missing) + len(prepared.there),
        there=len(prepared.there),
        failed=len(prepared.failed),
        elsewhere=sum(claims.holder(spec.digest) is not None for spec in missing),
        units=len(chosen.units),
        workers=chosen.workers,
        seconds=begin + seconds,
        memory=costs.memory(chosen.units),
        kinds=costs.kinds,
        sampled=costs.sampled,
        parts=[
            {**dict(zip(SHOWN, key, strict=True)), "runs": len(alike), "seconds": sum(map(costs.run, alike))}
            for key, alike in parts.items()
        ],
    )
