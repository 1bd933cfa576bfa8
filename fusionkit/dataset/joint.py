"""Several columns of one store together, for runs that learn them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS, parts_of
from fusionkit.tasks.label_column import has_label


def load_joint(store: Store, spec: RunSpec) -> TaskData:
    """Match a store's rows with the labels of all tasks of a run, over the examples that have every one.

    Returns:
        the first task's data with the others behind it: the same examples and rows, split by split.

    Raises:
        UsageError, DataError: as for any of the tasks alone.
    """
    parts, notes = parts_of(spec), list[str]()
    among = labelled_by_all(store, parts, notes)
    data = {
        name: load_task(store, TASKS[part.task], part.label, part.pool, whole=True, among=among)
        for name, part in parts.items()
    }
    told = (" has no labels: not used", " has no example with all labels: not used")
    notes += [note.replace(*told) for part in data.values() for note in part.notes]
    return behind_the_first(data, notes)


def behind_the_first(data: Mapping[str, TaskData], notes: list[str]) -> TaskData:
    """The first task's data with the others behind it, split by split."""
    (name, first), *_ = data.items()
    tests = {test: joined({part: each.tests[test] for part, each in data.items()}) for test in first.tests}
    tested = {part: each.test for part, each in data.items() if each.test is not None}
    return dataclasses.replace(
        first,
        train=joined({part: each.train for part, each in data.items()}),
        validation=joined({part: each.validation for part, each in data.items()}),
        test=joined(tested) if len(tested) == len(data) else None,
        tests=tests,
        notes=list(dict.fromkeys(notes)),
        name=name,
        others={part: each for part, each in data.items() if part != name},
    )


def joined(splits: Mapping[str, TaskSplit]) -> TaskSplit:
    """The first task's split with the others behind it."""
    (name, first), *others = splits.items()
    return dataclasses.replace(first, name=name, others=dict(others))


def labelled_by_all(store: Store, parts: Mapping[str, RunSpec], notes: list[str]) -> dict[str, NDArray[np.bool_]]:
    """By split bool ``[examples]``, those that have a label in each column; who lacks tags is noted here."""
    found = {}
    for name in store.splits:
        frame = store[name].examples
        columns = [frame.get(part.label, [None] * len(frame)) for part in parts.values()]
        labelled = np.array([[has_label(value) for value in column] for column in columns], dtype=bool)
        found[name] = labelled.all(axis=0)  # labelled: [tasks, examples]
        for part, has in zip(parts.values(), labelled, strict=True):  # who lacks another label: said by the matching
            lost = int((~has).sum())
            if lost and found[name].any() and TASKS[part.task].unit == "word":
                notes.append(f"{name}: {lost} examples have no {part.label}: left out")
    return found
