"""Labels and tags of one store together, for runs that learn both."""

from __future__ import annotations

import dataclasses

import numpy as np

from fusionkit.dataset.labels import load_task, no_label
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.store import Store
from fusionkit.tasks import TASKS


def load_joint(store: Store, columns: str, pool: str | None) -> TaskData:
    """Match a store's rows with intents and slots, over the examples that have both.

    Args:
        columns: ``intent,slots``.

    Returns:
        the intents, with the slots behind them: the same examples and rows, split by split.

    Raises:
        UsageError, DataError: as for either task alone.
    """
    label, tags = columns.split(",")
    both, notes = {}, []
    for name in store.splits:
        frame = store[name].examples
        tagged = np.zeros(len(frame), dtype=bool)
        if tags in frame.columns:
            tagged = np.array([listed is not None for listed in frame[tags]], dtype=bool)
        labelled = np.zeros(len(frame), dtype=bool)
        if label in frame.columns:
            labelled = np.array([not no_label(value) for value in frame[label]], dtype=bool)
        both[name] = tagged & labelled
        if lost := int((~tagged).sum()) if both[name].any() else 0:
            notes.append(f"{name}: {lost} examples have no {tags}: left out")  # without a label: said by the matching
    intents = load_task(store, TASKS["classification"], label, pool, whole=True, among=both)
    slots = load_task(store, TASKS["tagging"], tags, None, whole=True, among=both)
    return dataclasses.replace(
        intents,
        task=TASKS["joint"],
        label=columns,
        train=_joined(intents.train, slots.train),
        validation=_joined(intents.validation, slots.validation),
        test=None if intents.test is None or slots.test is None else _joined(intents.test, slots.test),
        notes=list(dict.fromkeys(_of_both(note) for note in [*notes, *intents.notes, *slots.notes])),
        slots=slots,
    )


def _of_both(note: str) -> str:
    return note.replace(" has no labels: not used", " has no example with both labels: not used")


def _joined(intents: TaskSplit, slots: TaskSplit) -> TaskSplit:
    return dataclasses.replace(intents, slots=slots)
