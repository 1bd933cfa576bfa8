"""Reading the columns of labels that a task learns, and what of them is there to learn.

Examples without any label are left out, and counted aloud.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.mlm import load_masked
from fusionkit.dataset.targets import Columns, carve_validation, match_splits
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import DataError, UsageError
from fusionkit.store import Store
from fusionkit.tags import are_span_tags
from fusionkit.tasks import Task
from fusionkit.tasks.label_column import LabelColumn


def load_task(
    store: Store,
    task: Task,
    label: str,
    pool: str | None,
    whole: bool = False,
    unpooled: bool = False,
    among: Mapping[str, NDArray[np.bool_]] | None = None,
) -> TaskData:
    """Match a store's rows with labels.

    Args:
        whole: keep all rows of each example, for a fusion that looks at them, not only those the head reads.
        unpooled: the head reads all rows of each example, none of them pooled.
        among: by split bool ``[examples]``, those that may be used; None is all.

    Raises:
        UsageError: the rows or the column cannot carry the task, or there is no train split.
        DataError: fewer than two classes or numbers to learn, a number missing, or nothing to judge them on.
    """
    if "train" not in store.splits:
        raise UsageError(
            f"{store.path} has no train split",
            expected="train",
            received=", ".join(store.splits),
            remedy="encode one",
        )
    if task.unit == "row":
        return load_masked(store, task)
    notes: list[str] = []
    columns = label_columns(store, task, label, notes, among)
    names = class_names(columns["train"][0], task, label)
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
    """By split the labels of all examples, and which examples have any; what was left out goes to ``notes``.

    Raises:
        UsageError: the rows or the column cannot carry the task. DataError: a number is missing.
    """
    tokens = store.manifest["columns"]["tokens"]
    if task.unit == "word" and (store.rows in ("cls", "mean") or tokens is None):
        raise UsageError(
            f"rows of {store.rows} carry no words to tag",
            expected="rows of words, words-mean or tokens, of a column with lists of words",
            received=f"rows of {store.rows} of {'words' if tokens else 'texts'}",
            remedy="encode again with --rows words, and --tokens where the words are",
        )
    columns = {}
    for name in store.splits:
        usable = None if among is None else among[name]
        gold, present = task.read(LabelColumn(store[name].examples, name, label, tokens, usable, notes))
        if usable is not None:  # what the others carry is not learned, and is no class
            present = present & usable
            gold = [one if ok else None for one, ok in zip(gold, present, strict=True)]
        columns[name] = gold, present
    return columns


def class_names(gold: list[Any], task: Task, label: str) -> list[str]:
    """The classes of train's labels in their order; a task of numbers has none.

    Raises:
        DataError: there are fewer than two.
    """
    seen = {one for row in gold if row is not None for one in task.classes(row)}
    try:
        names = sorted(seen, key=lambda name: (int(name), name))
    except ValueError:
        names = sorted(seen)
    if len(names) < 2:
        raise DataError(
            f"column {label!r} of train has fewer than two {'different numbers' if task.numeric else 'classes'}",
            expected="two or more",
            received=", ".join(names) or "none",
            remedy="choose another --label",
        )
    return [] if task.numeric else names


def counted_classes(names: list[str], gold: Iterable[Any], task: Task) -> tuple[int, str]:
    """How many classes a few-shot draw counts, and the tag of words that have no row: the most frequent one of train.

    Args:
        names: the classes. gold: the labels of train.
    """
    if task.unit == "word" and are_span_tags(names):
        return len({name[2:] for name in names if name != "O"}), "O"
    flat = Counter(one for row in gold for one in task.classes(row))
    return max(len(names), 1), max(names, key=lambda name: flat[name], default="")
