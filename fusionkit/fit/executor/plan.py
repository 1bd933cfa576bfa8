"""The units of a sweep and the number of processes, limited by memory and by whether the work is worth starting them.

The work is counted, not sampled: 36 few-shot runs over SST-2 took 13.2 CPU seconds, and 13.4 when a sample decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fusionkit.errors import UsageError
from fusionkit.fit.executor.context import Opening, opening_of
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.prepare import Prepared
from fusionkit.fit.executor.units import GPU_WIDEST, WIDEST, Unit, plan_units
from fusionkit.fit.model.own_code import script_names
from fusionkit.fit.vectorized.width import room
from fusionkit.machine.huge_pages import with_huge_pages
from fusionkit.machine.resources import cores, spare_memory
from fusionkit.plural import counted
from fusionkit.specs import RunSpec

START_SECONDS = 3.0  # a worker's imports, on the machines that this was measured on
SAVED = 0.1  # of the time of runs through the encoder, by a worker's huge pages; 0.03 to 0.33 (benchmarks/RESULTS.md)
UNITS_EACH = 4  # units per worker with halving, where fusions are not spread over units
SHARE_OF_SPARE = 0.7  # of the free memory for what runs learn; the rest is for states and intermediate results


@dataclass(frozen=True)
class Plan:
    """Units, and who does them.

    Attributes:
        widest: the most runs that a unit may have. opening: for workers; None where this process does all units.
    """

    units: list[Unit]
    widest: int
    workers: int
    opening: Opening | None
    notes: list[str]


def plan(
    prepared: Prepared, asked: int | None, *, elsewhere: bool = False, sharers: int = 1, memory: int | None = None
) -> Plan:
    """Units and processes of the missing runs.

    Args:
        asked: the number of workers; None lets cores, memory and the counted work decide.
        elsewhere: the workers are a cluster's. sharers: how many workers of a cluster share one memory.
        memory: bytes of that memory, what workers take without runs included; None assumes what this machine has left.

    Raises:
        UsageError: workers are asked for, and cannot import what the script itself defines.
    """
    context, missing = prepared.context, prepared.missing
    cost = CostModel(context)
    on_cpu = context.device.type == "cpu"
    most_runs = WIDEST if on_cpu else GPU_WIDEST
    if memory is None:
        spare = spare_memory() if on_cpu else room(context.device, 1)
    else:
        spare = max(memory - sharers * cost.memory([]), 0)
    units, widest, notes = _fitting(missing, most_runs, 1, cost, spare)
    alone = Plan(units, widest, 1, None, notes)
    if names := script_names(missing):
        if not elsewhere and (min(asked or 1, len(missing)) == 1 or opening_of(context) is None):
            return alone
        raise UsageError(
            f"workers cannot import {names[0]}: it is defined in the script or notebook that runs",
            expected="a class in a module that Python can import, like mylab.mix:Gated",
            received="a cluster" if elsewhere else f"workers={asked}",
            remedy="move the class to such a module, or train in this process, with workers=1 and no cluster",
        )
    # A GPU gets one process: its runs are stacked, and a second process would wait for the first.
    most = min(asked or (max(cores() // torch.get_num_threads(), 1) if on_cpu else 1), len(missing))
    # One unit per worker if there are enough runs. Halving does not spread a fusion over units, so that their costs
    # differ: several units per worker even them out.
    wanted = max(most, 1) * (UNITS_EACH if context.halving else 1)
    shared = max(min(most_runs, -(-len(missing) // wanted)), 1)
    units, widest, notes = _fitting(missing, shared, min(sharers, most) if elsewhere else most, cost, spare)
    # A worker has huge pages, which this process has not. For long runs that can pay where there is only one worker.
    gains = on_cpu and asked is None and with_huge_pages()
    saved = SAVED * sum(cost.unit_seconds(unit) for unit in units if not unit[0].is_frozen) if gains else 0.0
    if (most := min(most, len(units))) <= 1 and (most < 1 or saved < START_SECONDS):
        return alone
    if (opening := opening_of(context)) is None:
        if asked and not elsewhere:
            alone.notes.append("no other process can open these stores: this one does all")
        return alone
    # The longest units first: the last ones are short, so that no process works long after the others.
    units = sorted(units, key=cost.unit_seconds, reverse=True)
    if asked is None:
        if spare is not None and (most := min(most, spare // cost.memory(units))) < 1:
            return alone
        seconds = [cost.unit_seconds(unit) for unit in units]
        if START_SECONDS + makespan(seconds, most) >= sum(seconds) + saved:
            return alone
    return Plan(units, widest, most, opening, notes)


def makespan(units: Sequence[float], workers: int) -> float:
    """Seconds until the last worker is done, where each free worker takes the next of the units, given in seconds."""
    until = [0.0] * max(workers, 1)
    for seconds in units:
        until[until.index(min(until))] += seconds
    return max(until)


def _fitting(
    missing: Sequence[RunSpec], most_runs: int, workers: int, cost: CostModel, spare: int | None
) -> tuple[list[Unit], int, list[str]]:
    """Units so narrow that the weights of ``workers`` of them fit into memory, the most runs of one, and notes on it.

    All models of a unit are made at its start. Linux grants more memory than it has and kills a process that uses it.
    There would be no error after which a stack could be halved, and each restart would end in the same way.
    """
    halving = cost.context.halving
    widest, units = most_runs, plan_units(missing, most_runs, halving)
    most = max(map(len, units), default=0)
    # A run by itself has the same weights however narrow the other units are.
    while (
        spare is not None
        and widest > 1
        and workers * cost.weights([unit for unit in units if not unit[0].is_alone]) > SHARE_OF_SPARE * spare
    ):
        widest = -(-widest // 2)
        units = plan_units(missing, widest, halving)
    fitting = max(map(len, units), default=0)
    return units, widest, [f"at most {counted(fitting, 'run')} at once: memory"] if fitting < most else []
