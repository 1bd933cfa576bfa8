"""Choosing the task, its column and the pooling: as the user says, else as the columns of a store suggest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from fusionkit.dataset.compatibility import usual_examples
from fusionkit.dataset.mlm import choose_mlm, refuse_misfit
from fusionkit.errors import UsageError, first_has_seen_nothing, unknown_name
from fusionkit.fusions import build_fusion, fusion_layers, fusion_name, sees_examples
from fusionkit.heads import reads_sequences, sequences_of
from fusionkit.specs import MASKED, ONE_TOKEN, PER_SEQUENCE, parse_layers
from fusionkit.store import Store
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
    frame = usual_examples(store)
    known = f"tags {', '.join(tags) or 'none'}; labels {', '.join(labels) or 'none'}"
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, (*TASKS, *SHORT))
    if label is not None:
        if label not in frame.columns:
            raise unknown_name("column", label, frame.columns)
        listed = _holds_lists(frame[label])
    elif task is not None:
        listed = TASKS[task].of_lists
    else:
        if bool(tags) == bool(labels):
            raise UsageError(
                f"{store.path} can teach {'more than one task' if tags else 'no task that was guessed'}",
                expected="--task or --label",
                received=known,
                remedy=f"choose --task from {', '.join(TASKS)} and --label from the columns",
            )
        listed = bool(tags)
    if task is None:
        measured = not listed and _is_measured(frame.get(label or labels[0]))
        sentences = "pair-classification" if pair else "classification"
        task = "tagging" if listed else "regression" if measured else sentences
    chosen = TASKS[task]
    if chosen.several and label is None:
        tags = [name for name in frame.columns if name not in (columns["tokens"], *tags) and _holds_lists(frame[name])]
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
        column = label or next((name for name in labels if _is_numeric(frame.get(name))), column)
        if not _is_numeric(frame.get(column)):
            found = f"values like {_no_number(frame[column])!r}" if column in frame.columns else "none in train"
            raise _unsuited(column, chosen, "a column of numbers, empty cells where one is missing", found, MEND)
    if chosen.needs_pair and not pair:
        raise UsageError(
            f"the examples of {store.path} are no pairs",
            expected="two columns of texts (--text and --pair at encode)",
            received=f"the column {columns['text'] or columns['tokens']}",
            remedy="choose --task classification",
        )
    return chosen, column


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
    if task is None or (task not in SHORT and "=" not in task):
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
    frame = usual_examples(store)
    if named[0] in frame.columns and _holds_lists(frame[named[0]]):
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


class StoreFacts(Protocol):
    """The facts about a store, or about several that are read as one, from which a fusion is built."""

    rows: str
    layers: tuple[int, ...]
    hidden: int
    manifest: dict[str, Any]


def choose_fusion(store: StoreFacts, fusion: str, layers: str | None) -> tuple[str, str | None]:
    """A fusion's canonical name, and the layers that the user chose; UsageError if the store does not suit it."""
    name, count = fusion_name(fusion), store.manifest["encoder"]["layers"]
    if store.rows == MASKED:
        refuse_misfit(name, len(store.layers), store.hidden)
    if sees_examples(name) and store.rows in PER_SEQUENCE:
        raise UsageError(
            f"fusion {name!r} looks at an example's rows side by side; rows of {store.rows} are one an example",
            expected="rows of tokens or words",
            received=f"rows of {store.rows}",
            remedy="encode again with --rows tokens, or choose another fusion",
        )
    chosen = None
    if layers is not None:
        chosen = store.layers if layers == "all" else parse_layers(layers, count, "--fusion-layers")
        if absent := [layer for layer in chosen if layer not in store.layers]:
            raise UsageError(
                f"the store has no layer {', '.join(map(str, absent))}",
                expected=f"some of layers {', '.join(map(str, store.layers))}",
                received=f"--fusion-layers {layers}",
                remedy="choose --fusion-layers among these, or encode again with these --layers",
            )
    read = fusion_layers(name, store.layers, count, chosen)
    with torch.device("meta"):
        build_fusion(name, len(read), store.hidden)  # the constructor checks the options; nothing is allocated
    return name, None if chosen is None else ",".join(map(str, read))


def choose_pool(store: StoreFacts, task: Task, pool: str | None, head: str | None = None) -> str | None:
    """How rows are pooled to one vector per example; None where there is nothing to pool, UsageError if they cannot
    be pooled.

    Args:
        head: the head where one was chosen; for a head that reads whole sequences nothing is pooled.
    """
    many = store.rows in ("tokens", "words", "words-mean")
    if head is not None and reads_sequences(head):
        if pool is not None or not many:
            raise UsageError(
                f"head {head!r} reads every row of an example and pools them itself",
                expected="rows of tokens or words, without --pool",
                received=f"rows of {store.rows}" + (f" and --pool {pool}" if pool else ""),
                remedy="leave --pool out" if many else "encode again with --rows tokens, or choose another --head",
            )
        return None
    if task.unit == "word" or not many:
        if pool is not None:
            raise UsageError(
                f"--pool {pool} has nothing to pool",
                expected="a sentence task over rows of tokens or words",
                received=f"task {task.name} over rows of {store.rows}",
                remedy="leave --pool out" if task.unit != "example" else "encode with --rows tokens to pool at fit",
            )
        return None
    if pool in ONE_TOKEN and store.rows != "tokens":
        raise UsageError(
            "rows of words have no first and no last token",
            expected="rows of tokens",
            received=f"--pool {pool} over rows of {store.rows}",
            remedy="choose --pool mean or max",
        )
    if pool == "cls" and store.manifest["encoder"].get("causal"):
        raise first_has_seen_nothing(f"encoder {store.manifest['encoder']['name']!r}", "--pool")
    return pool or (store.manifest["encoder"].get("sentence_rows", "mean") if store.rows == "tokens" else "mean")


def check_sides(head: str, sides: int) -> None:
    """Raise UsageError if a head reads another number of sequences than the ``sides`` (1 or 2) of an example."""
    if (sequences_of(head) or sides) == sides:
        return
    raise UsageError(
        f"head {head!r} " + ("compares two sequences" if sides == 1 else "reads one sequence an example"),
        expected="pairs stored as two sequences" if sides == 1 else "texts, or pairs stored as one sequence",
        received="one sequence an example" if sides == 1 else "pairs stored as two sequences",
        remedy=f"encode again with --pair-as {'two' if sides == 1 else 'one'}, or choose another --head",
    )
