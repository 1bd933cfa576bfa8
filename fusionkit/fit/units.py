"""Units: the runs that one process trains together.

STAND-IN, this whole file: until stacked training is here, a unit is a few runs over the same data, trained one after
another. What stays is :class:`Unit`, and how :func:`plan_units` and :func:`train_unit` are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusionkit.fit.data import TaskData
from fusionkit.fit.materials import data_key
from fusionkit.fit.starting import Start
from fusionkit.fit.train import DivergenceError, Outcome, train_run
from fusionkit.specs import RunSpec

WIDTH = 8


@dataclass(frozen=True)
class Unit:
    """Runs that are trained together by one process."""

    specs: tuple[RunSpec, ...]


def plan_units(specs: Sequence[RunSpec], at_least: int = 1) -> list[Unit]:
    """Lay the runs into units, in their order.

    Args:
        at_least: so many units, where there are as many runs: a unit for each process.
    """
    width = max(min(WIDTH, -(-len(specs) // at_least)), 1)
    groups: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault((data_key(spec), spec.shots, spec.batch_size, spec.epochs), []).append(spec)
    return [
        Unit(tuple(group[start : start + width])) for group in groups.values() for start in range(0, len(group), width)
    ]


def train_unit(
    specs: Sequence[RunSpec],
    data: TaskData,
    layers: Mapping[RunSpec, tuple[int, ...]],
    hidden: int,
    on_epoch: Callable[[], None],
    starts: Mapping[str, Start],
) -> Iterator[tuple[RunSpec, Outcome | DivergenceError]]:
    """Train the runs of a unit, and yield each as soon as it is finished.

    Args:
        layers: positions among the stored layers that each run's fusion reads. on_epoch: called for each epoch of
            each run. starts: the trained runs to begin from, by their digests.

    Raises:
        MemoryError, RuntimeError: out of memory.
    """
    for spec in specs:
        start = None if spec.init_from is None else starts[spec.init_from]
        try:
            yield spec, train_run(spec, data, layers[spec], hidden, on_epoch, start)
        except DivergenceError as error:
            yield spec, error
