"""Units of work: runs that one process trains in lockstep, because they read the same rows in batches of one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from fusionkit.fit.grouped import grouped
from fusionkit.fit.train.halving import rivals_of, setting_of
from fusionkit.fit.vectorized.width import shape_of
from fusionkit.fusions import is_affine, sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.specs import SHUFFLE, RunSpec
from fusionkit.tasks import tasks_of

WIDEST = 48  # runs of a unit: a killed process can lose them all
GPU_WIDEST = 256  # on a GPU, where the kernel launches of a step cost more than its runs do

Unit = tuple[RunSpec, ...]


def data_key(spec: RunSpec) -> tuple[Any, ...]:
    """A key that runs over the same rows and labels share."""
    shares = spec.data_seed if ":" in (spec.mix or "") else None  # each seed draws its own shares
    block = None if spec.mdl is None else (spec.mdl, spec.data_seed, spec.shots)
    reading = (sees_examples(spec.fusion), reads_sequences(spec.head), pools_first(spec))
    return spec.task, spec.label, spec.control, spec.pool, *reading, shares, block


def pools_first(spec: RunSpec) -> bool:
    """Whether sequences can be mean-pooled as they are read, before the fusion: the same scores from fewer rows."""
    if spec.pool != "mean" or not spec.is_frozen or len(tasks_of(spec.task)) > 1:
        return False
    return not reads_sequences(spec.head) and is_affine(spec.fusion)


def unit_key(spec: RunSpec) -> tuple[Any, ...]:
    """A key that runs of one unit share: they see the same minibatches."""
    drawn = (spec.shots, spec.draw, spec.draw_ids, spec.batch_size, spec.validate_on, spec.validate_every)
    seed = None if spec.order == SHUFFLE else spec.data_seed  # each seed would hold windows of its own
    alone = spec.digest if spec.is_alone else None  # it has an encoder, or minibatches, of its own
    return (*data_key(spec), *drawn, spec.order, seed, alone)


def plan_units(specs: Sequence[RunSpec], widest: int = WIDEST, halving: bool = False) -> list[Unit]:
    """Group runs that see the same minibatches into units of at most ``widest``.

    Where such runs make several units, each fusion is spread evenly over them, so that no worker gets only the
    expensive ones. With ``halving``, runs that compete stay in one unit, even if they are more than ``widest``.
    """
    units = list[Unit]()
    for alike in grouped(specs, unit_key).values():
        if halving:
            units += map(tuple, _packed(alike, widest))
        else:
            alike = _mixed(alike)
            units += [tuple(alike[at : at + widest]) for at in range(0, len(alike), widest)]
    return units


def split_in_two(unit: Sequence[RunSpec], halving: bool = False) -> tuple[Unit, Unit]:
    """The two halves of a unit of several runs.

    With ``halving``, runs that compete stay together. If all of them compete, the seeds of a setting stay together, so
    that its score is still their mean.
    """
    if halving:
        for key in (rivals_of, setting_of):
            parts = list(grouped(unit, key).values())
            if len(parts) > 1:
                half = len(parts) // 2
                return tuple(chain.from_iterable(parts[:half])), tuple(chain.from_iterable(parts[half:]))
    half = -(-len(unit) // 2)
    return tuple(unit[:half]), tuple(unit[half:])


def _packed(specs: Sequence[RunSpec], widest: int) -> list[list[RunSpec]]:
    """Units that do not split groups of competing runs."""
    units = list[list[RunSpec]]()
    for group in grouped(specs, rivals_of).values():
        if units and len(units[-1]) + len(group) <= widest:
            units[-1] += group
        else:
            units.append(group)
    return units


def _mixed(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Runs sorted by data seed; within a seed, the runs of each shape are spread evenly."""
    kinds = [(spec.data_seed, shape_of(spec)) for spec in specs]
    counts, seen = Counter(kinds), Counter[Any]()
    places = []
    for kind in kinds:
        seen[kind] += 1
        places.append((kind[0], (seen[kind] - 0.5) / counts[kind]))
    return [specs[k] for k in sorted(range(len(specs)), key=places.__getitem__)]
