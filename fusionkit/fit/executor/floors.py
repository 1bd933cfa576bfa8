"""Floors of a sweep: the process that drives it learns and writes them, since they take little time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from fusionkit.dataset.draws import draw_of
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.unit_job import record_of
from fusionkit.fit.sweep.floors import SHARED
from fusionkit.fit.train.floors import learn
from fusionkit.ragged import IntArray
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import RunAnswers, answers_of


def keep_floors(
    floors: Sequence[RunSpec],
    heads: Sequence[RunSpec],
    context: SweepContext,
    runs: RunsFolder,
    on_end: Callable[[dict[str, Any]], None],
) -> None:
    """Learn and write the floors that have no record.

    Two processes on one folder may both do so: their records differ in seconds alone, and the later one replaces the
    earlier.

    Args:
        heads: the sweep's other runs. A floor reads the data of a head with the same :data:`SHARED` fields.

    Raises:
        UsageError: the task has no such floor.
    """
    shared = attrgetter(*SHARED)
    beside = {shared(head): head for head in reversed(heads)}  # the first head with these fields
    learned = dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, RunAnswers]]]()
    for spec in floors:
        if runs.has(spec.digest):
            continue
        head = replace(beside[shared(spec)], init_from=None, init_part=None, freeze=None)
        data = context.data(head)
        drawn = draw_of(head, data)
        key = spec.fusion, id(data), None if drawn is None else tuple(drawn)
        if key not in learned:  # on all of train, all seeds have the same floor
            learned[key] = _outcome(spec, data, drawn)
        outcome, answers = learned[key]
        record = record_of(context, head, outcome) | {"spec": spec.to_dict(), "layers": [], "sources": []}
        runs.write(spec, record, {}, answers=answers)
        on_end(record)


def _outcome(spec: RunSpec, data: TaskData, drawn: IntArray | None) -> tuple[dict[str, Any], dict[str, RunAnswers]]:
    """Learn a floor from the drawn examples, or all of train. The outcome for its record, and its kept answers."""
    began = time.perf_counter()
    train = data.train if drawn is None else data.train.subset(drawn)
    floor = learn(spec.fusion, data, train)
    validation = answers_of(data.task, data.validation.gold, floor.answer(data.validation), data.labels).scores()
    answers = {
        name: answers_of(data.task, split.gold, floor.answer(split), data.labels)
        for name, split in data.scored_tests.items()
    }
    tests = {name: kept.scores() for name, kept in answers.items()}
    test = next(iter(tests.values()), None)  # of several, the first is `data.test`
    metric = next(iter(validation))
    seconds = time.perf_counter() - began
    outcome = {
        "status": "finished",
        "metric": metric,
        "score": None if test is None else test[metric],
        "validation_score": validation[metric],
        "scores": {"validation": validation} | ({} if test is None else {"test": test}),
        "tests": tests if data.tests else {},
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
    return outcome, {name: RunAnswers({data.name: kept}) for name, kept in answers.items()}
