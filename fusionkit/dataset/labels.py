"""Reading the label columns of a run's tasks and matching them with rows; examples without labels are left out."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.control import control_columns, label_pool
from fusionkit.dataset.mlm import load_masked
from fusionkit.dataset.split import tasks_joined
from fusionkit.dataset.targets import NO_LABELS, Columns, carve_validation, match_splits, without_strange_test
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.plural import counted
from fusionkit.specs import PER_SEQUENCE, RunSpec
from fusionkit.store import Store
from fusionkit.tags import are_span_tags, other_scheme, span_types
from fusionkit.tasks import TASKS, Task, parts_of
from fusionkit.tasks.label_column import LabelColumn, has_label


def require_train(store: Store, remedy: str = "encode one") -> None:
    """UsageError for a store without a train split."""
    if "train" not in store.splits:
        raise UsageError(
            f"{store.path} has no train split",
            expected="train",
            received=", ".join(store.splits),
            remedy=remedy,
        )


def load_task(
    store: Store,
    task: Task,
    label: str,
    pool: str | None,
    whole: bool = False,
    unpooled: bool = False,
    among: Mapping[str, NDArray[np.bool_]] | None = None,
    control: bool = False,
) -> TaskData:
    """Match a store's rows with labels.

    Args:
        whole: keep all rows of each example, for a fusion that looks at them, not only those the head reads.
        unpooled: the head reads all rows of each example, none of them pooled.
        among: by split, bool ``[examples]``: those that may be used; None is all. control: replace the real labels by
            control labels (:mod:`fusionkit.dataset.control`).

    UsageError if the rows or the column do not suit the task, if there is no train split, or if it has fewer than two
    classes or different numbers; DataError if a number is missing, or train is too small to set validation aside.
    """
    require_train(store)
    if task.unit == "row":
        return load_masked(store, task)
    notes: list[str] = []
    columns = label_columns(store, task, label, notes, among)
    names = class_names(columns["train"][0], task, label)
    notes += scheme_notes(task, names)
    columns = without_strange_test(columns, task, names, notes)
    if control:
        columns = control_columns(store, columns, task, label, label_pool(task, [columns["train"][0]]))
    splits = match_splits(store, columns, task, pool, names, notes, whole, unpooled)
    train = splits["train"]
    if "validation" not in splits:
        train, splits["validation"] = carve_validation(store, train, notes)
    if "test" not in splits:
        notes.append("no labelled test split: scores are validation's alone")
    classes, default = counted_classes(names, train.gold, task)
    return TaskData(task, label, pool, names, classes, default, train, splits["validation"], splits.get("test"), notes)


def label_columns(
    store: Store,
    task: Task,
    label: str,
    notes: list[str],
    among: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Columns:
    """By split, the labels of all examples and which examples have one; what is left out is added to ``notes``.

    UsageError if the rows or the column do not suit the task, DataError if a number is missing.
    """
    tokens = store.manifest["columns"]["tokens"]
    if task.unit == "word" and (store.rows in PER_SEQUENCE or tokens is None):
        raise UsageError(
            f"rows of {store.rows} carry no words to tag",
            expected="rows of words, words-mean or tokens, of a column with lists of words",
            received=f"rows of {store.rows} of {'words' if tokens else 'texts'}",
            remedy="encode again with --rows words, and --tokens where the words are",
        )
    read = [label, tokens] if task.unit == "word" else [label]
    columns = {}
    for name in store.splits:
        usable = None if among is None else among[name]
        gold, present = task.read(LabelColumn(store[name].columns(read), name, label, tokens, usable, notes))
        if usable is not None:  # labels of other examples must not become classes
            present = present & usable
            gold = [one if ok else None for one, ok in zip(gold, present, strict=True)]
        columns[name] = gold, present
    return columns


def class_names(gold: list[Any], task: Task, label: str) -> list[str]:
    """The sorted classes of train's labels; UsageError for fewer than two. A task of numbers has none.

    Classes are sorted as integers if all of them are integers, else as text.
    """
    seen = {one for row in gold if row is not None for one in task.classes(row)}
    try:
        names = sorted(seen, key=lambda name: (int(name), name))
    except ValueError:
        names = sorted(seen)
    if len(names) < 2:
        raise UsageError(
            f"column {label!r} of train has fewer than two {'different numbers' if task.numeric else 'classes'}",
            expected="two or more",
            received=", ".join(names) or "none",
            remedy="choose another --label, or encode data with more of them",
        )
    return [] if task.numeric else names


def counted_classes(names: list[str], gold: Iterable[Any], task: Task) -> tuple[int, str]:
    """The number of classes in a few-shot draw, and the default tag of words without a row: ``O`` for span tags, else
    the most frequent class of train.

    Args:
        names: the classes. gold: the labels of train.
    """
    if task.unit == "word" and are_span_tags(names):
        return len(span_types(names)), "O"
    flat = Counter(one for row in gold for one in task.classes(row))
    return max(len(names), 1), max(names, key=lambda name: flat[name], default="")


def scheme_notes(task: Task, names: Iterable[str]) -> list[str]:
    """A note where tags look like spans but are scored word by word, because some are of another scheme than BIO."""
    why = other_scheme(names) if task.unit == "word" else None
    return [f"tags are scored by word accuracy, not F1: {why}"] if why else []


def load_joint(store: Store, spec: RunSpec) -> TaskData:
    """Match a store's rows with the labels of all tasks of a run, for the examples that have all of these labels.

    Returns:
        the first task's data with the others' in its ``others``; all have the same examples and rows in each split.
        Errors are those of :func:`load_task`.
    """
    parts, notes = parts_of(spec), list[str]()
    among = labelled_by_all(store, parts, notes)
    data = {
        name: load_task(store, TASKS[part.task], part.label, part.pool, whole=True, among=among, control=spec.control)
        for name, part in parts.items()
    }
    told = (NO_LABELS, " has no example with all labels: not used")
    notes += [note.replace(*told) for part in data.values() for note in part.notes]
    return joined_data(data, notes)


def joined_data(data: Mapping[str, TaskData], notes: list[str], apart: bool = False) -> TaskData:
    """The first task's data with the other tasks in its ``others``, and so in each split.

    ``apart``: each task has its own examples.
    """
    (name, first), *_ = data.items()
    tests = {test: tasks_joined({part: each.tests[test] for part, each in data.items()}) for test in first.tests}
    tested = {part: each.test for part, each in data.items() if each.test is not None}
    test = next(iter(tests.values()), None)  # the same object: it is scored once
    if test is None and len(tested) == len(data):
        test = tasks_joined(tested, apart)
    return dataclasses.replace(
        first,
        train=tasks_joined({part: each.train for part, each in data.items()}, apart),
        validation=tasks_joined({part: each.validation for part, each in data.items()}, apart),
        test=test,
        tests=tests,
        notes=list(dict.fromkeys(notes)),
        name=name,
        others={part: each for part, each in data.items() if part != name},
        apart=apart,
    )


def labelled_by_all(store: Store, parts: Mapping[str, RunSpec], notes: list[str]) -> dict[str, NDArray[np.bool_]]:
    """By split, bool ``[examples]``: True with a label in every column. ``notes`` count examples without tags."""
    found = {}
    for name in store.splits:
        frame = store[name].columns(part.label for part in parts.values())
        columns = [frame.get(part.label, [None] * len(frame)) for part in parts.values()]
        labelled = np.array([[has_label(value) for value in column] for column in columns], dtype=bool)
        found[name] = np.logical_and.reduce(labelled)  # labelled: [tasks, examples]
        for part, has in zip(parts.values(), labelled, strict=True):  # `task.read` notes other missing labels
            lost = int((~has).sum())
            if lost and found[name].any() and TASKS[part.task].unit == "word":
                notes.append(f"{name}: {counted(lost, 'example')} without {part.label}: left out")
    return found
