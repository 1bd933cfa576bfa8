"""Floors of a sweep, learned and kept by the process that drives it: they take a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fusionkit.dataset.draws import draw_of
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.unit_job import record_of
from fusionkit.fit.sweep.floors import SHARED
from fusionkit.fit.train.floors import Floor, learn
from fusionkit.ragged import IntArray
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

Heads = Sequence[RunSpec]
Learned = dict[tuple[Any, ...], dict[str, Any]]


def keep_floors(
    floors: Sequence[RunSpec],
    heads: Heads,
    context: SweepContext,
    runs: RunsFolder,
    on_end: Callable[[dict[str, Any]], None],
) -> None:
    """Learn and keep the floors that have no record.

    Two processes on one folder may both do so: their records are equal, and the later one takes the other's place.

    Args:
        heads: the sweep's other runs: a floor sees the data of the one that it stands beside.

    Raises:
        UsageError: the task has no such floor.
    """
    beside = {tuple(getattr(head, name) for name in SHARED): head for head in reversed(heads)}
    learned: Learned = {}
    for spec in floors:
        if runs.has(spec.digest):
            continue
        head = beside[tuple(getattr(spec, name) for name in SHARED)]
        plain = replace(head, init_from=None, init_part=None, freeze=None)
        record = floor_record(context, spec, plain, learned)
        runs.write(spec, record, {})
        on_end(record)


def floor_record(context: SweepContext, spec: RunSpec, head: RunSpec, learned: Learned) -> dict[str, Any]:
    """The record of a floor over the data of a head: that of a finished run without weights.

    Args:
        learned: what was learned before; all seeds have one floor where they learn from all of train.
    """
    data = context.data(head)
    drawn = draw_of(head, data)
    key = spec.fusion, id(data), None if drawn is None else tuple(drawn)
    if key not in learned:
        learned[key] = _outcome(spec, data, drawn)
    return {**record_of(context, head, learned[key]), "spec": spec.to_dict(), "layers": [], "sources": []}


def _outcome(spec: RunSpec, data: TaskData, drawn: IntArray | None) -> dict[str, Any]:
    """What a floor learns from some examples of train, and its scores."""
    began = time.perf_counter()
    train = data.train if drawn is None else data.train.subset(drawn)
    floor = learn(spec.fusion, data, train)
    validation = _scores(data, data.validation, floor)
    test = None if data.test is None else _scores(data, data.test, floor)
    metric = next(iter(validation))
    seconds = time.perf_counter() - began
    return {
        "status": "finished",
        "metric": metric,
        "score": None if test is None else test[metric],
        "validation_score": validation[metric],
        "scores": {"validation": validation} | ({} if test is None else {"test": test}),
        "tests": {name: _scores(data, split, floor) for name, split in data.tests.items()},
        "best_epoch": 0,
        "curve": [],
        "steps": 0,
        "seconds": seconds,
        "seconds_alone": seconds,
        "epoch_seconds": [],
        "fusion_parameters": 0,
        "head_parameters": floor.parameters,
        "trained_parameters": floor.parameters,
        "draw": None if drawn is None else train.ids,
        "watched": len(data.validation),
        "floor": floor.told,
    }


def _scores(data: TaskData, split: TaskSplit, floor: Floor) -> dict[str, float]:
    return data.task.scores(split.gold, floor.answer(split), data.labels)
