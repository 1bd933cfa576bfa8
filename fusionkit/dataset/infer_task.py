"""Choosing the task and its column: as the user says, else as the columns of a store suggest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.dataset.compatibility import train_split
from fusionkit.dataset.mlm import choose_mlm
from fusionkit.errors import UsageError, unknown_name
from fusionkit.plural import few
from fusionkit.store import Split, Store
from fusionkit.tasks import ALONE, SHORT, TASKS, Task, tasks_of
from fusionkit.tasks.joint import columns_of

MEND = "choose another --label or --task, or mend these values and encode again"


def choose_task(store: Store, task: str | None, label: str | None) -> tuple[Task, str]:
    """The task and the column it learns: as the user names them, else from the columns' roles; UsageError if they do
    not fit.
    """
    if (masked := choose_mlm(store, task, label)) is not None:
        return masked
    columns = store.manifest["columns"]
    tags, labels, pair = columns["tags"], columns["labels"], columns["pair"]
    train = train_split(store)
    known = f"tags {', '.join(tags) or 'none'}; labels {', '.join(labels) or 'none'}"
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, (*TASKS, *SHORT))
    if label is not None:
        if label not in train.column_names:
            raise unknown_name("column", label, train.column_names)
        listed = _holds_lists(train.columns([label])[label])
    elif task is not None:
        listed = TASKS[task].of_lists
    else:
        if bool(tags) == bool(labels):
            raise UsageError(
                f"{store.path} has {'tags and labels: either can be learned' if tags else 'neither tags nor labels'}",
                expected="--task or --label",
                received=known,
                remedy=f"choose --task from {', '.join(TASKS)} and --label from the columns",
            )
        listed = bool(tags)
    if task is None:
        measured = not listed and _is_measured(_column(train, label or labels[0]))
        sentences = "pair-classification" if pair else "classification"
        task = "tagging" if listed else "regression" if measured else sentences
    chosen = TASKS[task]
    if chosen.several and label is None:
        tags = _candidates(chosen, columns, train)
    if label is None and not (tags if listed else labels):
        wanted = ("a list of labels" if chosen.several else "one tag a word") if listed else "one label an example"
        raise UsageError(
            f"{store.path} has no column for the task {chosen.name}",
            expected=f"a column with {wanted}",
            received=known,
            remedy="name it with --label",
        )
    if chosen.of_lists != listed:
        lists = f"lists of {'labels' if chosen.several else 'tags'}"
        wanted = lists if chosen.of_lists else "one label an example"
        raise _unsuited(label, chosen, wanted, "lists" if listed else "single values")
    column = label or (tags if listed else labels)[0]
    if chosen.numeric:
        column = label or next(iter(_candidates(chosen, columns, train)), column)
        if not _is_numeric(values := _column(train, column)):
            found = "none in train" if values is None else f"values like {_no_number(values)!r}"
            raise _unsuited(column, chosen, "a column of numbers", found, MEND)
    if chosen.needs_pair and not pair:
        raise UsageError(
            f"the examples of {store.path} are no pairs",
            expected="two columns of texts (--text and --pair at encode)",
            received=f"the column {columns['text'] or columns['tokens']}",
            remedy="choose --task classification",
        )
    return chosen, column


def _candidates(task: Task, columns: Mapping[str, Any], train: Split) -> list[str]:
    """The columns that a task could learn, the best guess first; ``columns`` are the roles."""
    if task.several:
        words = (columns["tokens"], *columns["tags"])
        others = train.columns(name for name in train.column_names if name not in words)
        return [name for name in others.columns if _holds_lists(others[name])]
    found: list[str] = columns["tags" if task.of_lists else "labels"]
    return [name for name in found if _is_numeric(_column(train, name))] if task.numeric else found


def _column(split: Split, name: str) -> pd.Series[Any] | None:
    """One column of a split's examples; no others are read, because texts may be far larger than labels."""
    found: pd.Series[Any] | None = split.columns([name]).get(name)
    return found


def guess_note(store: Store, task: str | None, label: str | None) -> str | None:
    """A note that names the columns that could be learned instead of the guessed one; None where the user named the
    column, or there is no other. Arguments and errors are those of :func:`choose_tasks`.
    """
    if label is not None or (task is not None and _is_several(task)):
        return None
    chosen, column = choose_task(store, task, None)
    if chosen.unit == "row":
        return None
    roles = store.manifest["columns"]
    if task is None:  # then --label may also name a column that suits another task
        found = roles["tags" if chosen.of_lists else "labels"]
    else:
        found = _candidates(chosen, roles, train_split(store))
    others = [name for name in found if name != column]
    return f"learns {column}; also there: {few(others, 4)} (--label chooses)" if others else None


def _unsuited(
    column: str | None, task: Task, expected: str, received: str, remedy: str = "choose another --label or --task"
) -> UsageError:
    what = f"column {column!r} does not suit the task {task.name}"
    return UsageError(what, expected=expected, received=received, remedy=remedy)


def choose_tasks(store: Store, task: str | None, label: str | None) -> dict[str, tuple[Task, str]]:
    """The tasks of a run by name, each with the column that it learns; a task without a name is under ``""``.

    Args:
        task: a task, ``joint``, or several as ``topic=classification,slots=tagging``. label: a column; for several
            tasks one per task, ``topic=category`` where the column has another name than the task.
    """
    if task is None or not _is_several(task):
        return {ALONE: choose_task(store, task, label)}
    tasks = tasks_of(task)
    if task in SHORT:
        columns = dict(zip(tasks, _joint_columns(store, tasks, label), strict=True))
    else:
        columns = {name: name for name in tasks} | ({} if label is None else columns_of(label, tasks))
    if twice := [column for column, count in Counter(columns.values()).items() if count > 1 and task not in SHORT]:
        raise UsageError(
            f"several tasks of one run learn the column {twice[0]!r}",
            expected="a column for each task",
            received=", ".join(f"{name}={column}" for name, column in columns.items()),
            remedy="choose another --label, or train two runs",
        )
    return {name: choose_task(store, tasks[name].name, column) for name, column in columns.items()}


def _is_several(task: str) -> bool:
    """Whether a --task stands for several tasks."""
    return task in SHORT or "=" in task


def _joint_columns(store: Store, tasks: Mapping[str, Task], label: str | None) -> list[str]:
    """The two columns of ``joint``: those that the user names, in either order, else the only column of each role."""
    columns = store.manifest["columns"]
    guessed = {role: columns[role] for role in ("labels", "tags")}
    named = [found[0] for found in guessed.values() if len(found) == 1] if label is None else label.split(",")
    if len(named) != 2:
        raise UsageError(
            f"{store.path}: a joint run learns two columns",
            expected="--label LABEL,TAGS: one label an example, one tag a word",
            received=label or "; ".join(f"{role} {', '.join(found) or 'none'}" for role, found in guessed.items()),
            remedy="name both with --label; tags need a source with lists of words",
        )
    if all("=" in each for each in named):
        return [columns_of(",".join(named), tasks)[name] for name in tasks]
    first = _column(train_split(store), named[0])
    if first is not None and _holds_lists(first):
        named.reverse()
    return named


def _holds_lists(column: pd.Series[Any]) -> bool:
    """Whether the first label that is not missing is a list."""
    held = column.dropna()
    return len(held) > 0 and isinstance(held.iloc[0], (list, np.ndarray))


def _is_numeric(column: pd.Series[Any] | None) -> bool:
    return column is not None and pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _no_number(column: pd.Series[Any]) -> object:
    """The first value of a column that is not a number, else its first value."""
    strange = column[pd.to_numeric(column.astype(str), errors="coerce").isna()]
    return next(iter(strange if len(strange) else column), None)


def _is_measured(column: pd.Series[Any] | None) -> bool:
    """True for numbers with decimals. Whole numbers may be classes: pandas makes them floats if a value is missing."""
    if column is None or not pd.api.types.is_float_dtype(column):
        return False
    values = column.to_numpy(dtype=np.float64)
    return bool((values[np.isfinite(values)] % 1 != 0).any())
