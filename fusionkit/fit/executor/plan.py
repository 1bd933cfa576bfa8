"""Units of a sweep, and the processes that share them: as memory allows, and where the work is worth their start.

The work is counted, not sampled: 36 few-shot runs over SST-2 took 13.2 CPU seconds, 13.4 where a sample decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fusionkit.fit.executor.context import Opening, opening_of
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.prepare import Prepared
from fusionkit.fit.executor.units import GPU_WIDEST, WIDEST, Unit, plan_units
from fusionkit.fit.vectorized.width import room
from fusionkit.machine.resources import cores, spare_memory
from fusionkit.plural import counted
from fusionkit.specs import RunSpec

START_SECONDS = 3.0  # a worker's imports, on the machines that this was measured on
UNITS_EACH = 4  # of a worker, where fusions are not spread over units
SHARE_OF_SPARE = 0.7  # of the memory that is left for what runs learn; the rest is for states and what lies between


@dataclass(frozen=True)
class Plan:
    """Who does what.

    Attributes:
        widest: the most runs a unit may have. opening: for workers; None where this process does all.
    """

    units: list[Unit]
    widest: int
    workers: int
    opening: Opening | None
    notes: list[str]


def plan(prepared: Prepared, asked: int | None, *, elsewhere: bool = False) -> Plan:
    """Units and processes of the missing runs.

    Args:
        asked: so many workers; None lets cores, memory and the counted work decide.
        elsewhere: the workers are other machines', each with the memory of its own, taken to be as much as here.
    """
    context, missing = prepared.context, prepared.missing
    cost = CostModel(context)
    on_cpu = context.device.type == "cpu"
    most_runs = WIDEST if on_cpu else GPU_WIDEST
    spare = spare_memory() if on_cpu else room(context.device, 1)
    units, widest, notes = _fitting(missing, most_runs, 1, cost, spare)
    alone = Plan(units, widest, 1, None, notes)
    # A GPU is one process's: its runs are stacked, and another process would wait for it.
    most = min(asked or (max(cores() // torch.get_num_threads(), 1) if on_cpu else 1), len(missing))
    # A unit for each, where there are runs; halving keeps fusions whole, and several units even out what they cost.
    shared = max(min(most_runs, -(-len(missing) // (max(most, 1) * (UNITS_EACH if context.halving else 1)))), 1)
    units, widest, notes = _fitting(missing, shared, 1 if elsewhere else most, cost, spare)
    if (most := min(most, len(units))) <= 1:
        return alone
    if (opening := opening_of(context)) is None:
        if asked:
            alone.notes.append("no other process can open these stores: this one does all")
        return alone
    # The longest first: those at the end are short, so that no process is waited for long.
    units = sorted(units, key=cost.unit_seconds, reverse=True)
    if asked is None:
        if spare is not None:
            most = max(min(most, spare // cost.memory(units)), 1)
        seconds = [cost.unit_seconds(unit) for unit in units]
        if START_SECONDS + makespan(seconds, most) >= sum(seconds):
            return alone
    return Plan(units, widest, most, opening, notes)


def makespan(units: Sequence[float], workers: int) -> float:
    """Seconds until the last of so many workers is done, who take units of these seconds in their order."""
    until = [0.0] * max(workers, 1)
    for seconds in units:
        until[until.index(min(until))] += seconds
    return max(until)


def _fitting(
    missing: Sequence[RunSpec], most_runs: int, workers: int, cost: CostModel, spare: int | None
) -> tuple[list[Unit], int, list[str]]:
    """Units, the most runs that one has, and what the user is told of it: the weights of so many units at once fit.

    All models of a unit are made at its start. Linux gives memory away that it does not have and kills whoever uses it:
    no error would come that a stack could be halved by, and every start anew would end in the same way.
    """
    halving = cost.context.halving
    widest, units = most_runs, plan_units(missing, most_runs, halving)
    while spare is not None and widest > 1 and workers * cost.weights(units) > SHARE_OF_SPARE * spare:
        widest = -(-widest // 2)
        units = plan_units(missing, widest, halving)
    narrowed = widest < min(most_runs, len(missing))
    return units, widest, [f"at most {counted(widest, 'run')} at once: memory"] if narrowed else []
