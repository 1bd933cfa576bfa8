"""Runs of several tasks: ``{name: task}`` with a column and a head each.

A run's spec has them as texts: ``task`` is ``topic=classification,slots=tagging``, ``label`` the columns in that order,
``category,slots``, and ``head`` the heads, ``classifier+crf``. ``joint`` is short for an ``intent`` and its ``slots``.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.heads import each_head
from fusionkit.plural import counted
from fusionkit.specs import MULTI, RunSpec
from fusionkit.tasks.head_check import check_head, table_heads
from fusionkit.tasks.table import TASKS
from fusionkit.tasks.task import Task

JOINT = "joint"
SHORT = {JOINT: "intent=classification,slots=tagging"}
ALONE = ""  # the name of the one task that a run has
NAME = re.compile(r"\w[\w -]*")


def is_multi(text: object) -> bool:
    """Whether a user asks for several tasks over stores of their own: ``multi``, ``multi,stsb=regression``."""
    return isinstance(text, str) and text.partition(",")[0] == MULTI


def check_task(text: str) -> None:
    """Raise UsageError for a text that does not name tasks."""
    if not is_multi(text):
        tasks_of(text)
    elif named := text.partition(",")[2]:
        tasks_of(named)


@cache
def tasks_of(text: str) -> Mapping[str, Task]:
    """The tasks of a run by their names; a task written without a name has the name ``""``.

    Raises:
        UsageError: an unknown task, a repeated or missing name, or a task that allows no others beside it (``mlm``).
    """
    text = SHORT.get(text, text)
    if "=" not in text:
        if text not in TASKS:
            raise unknown_name("task", text, (*TASKS, *SHORT))
        return {ALONE: TASKS[text]}
    found: dict[str, Task] = {}
    for part in text.split(","):
        name, equals, kind = part.partition("=")
        if not equals or not NAME.fullmatch(name) or name in found:
            raise UsageError(
                "each task of a run has a name of its own",
                expected="NAME=TASK, names of letters, digits, spaces, - and _",
                received=text,
                remedy="write --task topic=classification --task slots=tagging",
            )
        if kind not in TASKS or kind == "mlm":
            raise unknown_name("task beside others", kind, [each for each in TASKS if each != "mlm"])
        found[name] = TASKS[kind]
    return found


def text_of(tasks: Mapping[str, Task]) -> str:
    """The tasks as a spec's text, in its short form where there is one."""
    if len(tasks) == 1:
        return next(iter(tasks.values())).name
    text = ",".join(f"{name}={task.name}" for name, task in tasks.items())
    return next((short for short, whole in SHORT.items() if whole == text), text)


def shown_tasks(task: str, label: str) -> str:
    """What a run learns, for display: its column, or the names of several tasks, ``sst2 + trec6``.

    Args:
        task, label: as a spec has them.
    """
    tasks = tasks_of(task)
    return label if ALONE in tasks else " + ".join(tasks)


def columns_of(text: str, tasks: Mapping[str, Task]) -> dict[str, str]:
    """The columns that a user names for several tasks: ``name=column``, or one for each task in their order.

    Args:
        text: the value of ``--label``.

    Raises:
        UsageError: an unknown name, a name twice, or another number of columns.
    """
    parts = text.split(",")
    named = [part.partition("=")[0] for part in parts if "=" in part]
    if len(named) == len(parts) == len({*named} & {*tasks}):
        return dict(part.split("=", 1) for part in parts)
    if len(parts) != len(tasks) or named:
        raise UsageError(
            f"--label does not name the columns of {', '.join(tasks)}",
            expected="NAME=COLUMN, or a column for each task in their order",
            received=text,
            remedy=f"write --label {next(iter(tasks))}=COLUMN, or leave it out for columns of the tasks' names",
        )
    return dict(zip(tasks, parts, strict=True))


def fitting_heads(tasks: Mapping[str, Task], head: str | None) -> str:
    """The heads of a run as a spec has them, one for each task in their order: the chosen head, else the task's
    default.

    Args:
        head: ``slots=crf`` by name, or ``classifier+crf`` one for each.

    Raises:
        UsageError: a head that does not fit its task.
    """
    alone = len(tasks) == 1
    chosen = {name: table_heads(task, alone)[0] for name, task in tasks.items()}
    if head is not None and "=" not in head:
        parts = each_head(head)
        if len(parts) != len(tasks):
            raise UsageError(
                f"unknown head for {text_of(tasks)} {head!r}",
                expected=f"{counted(len(tasks), 'head')}, like {'+'.join(chosen.values())}",
                received=head,
                remedy="name a head for each task, joined by +",
            )
        chosen = dict(zip(tasks, parts, strict=True))
    elif head is not None:
        refuse_twice("head", [part.partition("=")[0] for part in head.split(",")], head)
        for part in head.split(","):
            name, _, one = part.partition("=")
            if name not in tasks:
                raise unknown_name("task of this run", name, tasks)
            chosen[name] = one
    for name, one in chosen.items():
        check_head(tasks[name], one, "" if alone else name)
    return "+".join(chosen.values())


def refuse_twice(flag: str, names: Sequence[str], text: str | None) -> None:
    """Refuse a text like ``a=crf,a=tagger``, of which one value would be lost (UsageError)."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(
            f"--{flag} names {twice[0]!r} twice", expected="each name once", received=text, remedy="keep one of them"
        )


def parts_of(spec: RunSpec) -> dict[str, RunSpec]:
    """The spec of each task as a run of its own, by the task's name; a run of one task has its spec under ``""``."""
    if spec.task not in SHORT and "=" not in spec.task:
        return {ALONE: spec}
    tasks = tasks_of(spec.task)
    labels, heads, own = spec.label.split(","), spec.head.split("+"), dict[str, dict[str, Any]]()
    if spec.task_stores is not None:
        stores = spec.task_stores.split(",")
        sizes = spec.task_batches.split(",") if spec.task_batches else ["0"] * len(stores)
        plain: dict[str, Any] = {"task_stores": None, "task_batches": None}
        own = {
            name: {**plain, "store": store, "batch_size": int(size) or spec.batch_size}
            for name, store, size in zip(tasks, stores, sizes, strict=True)
        }
    return {
        name: dataclasses.replace(
            spec,
            task=task.name,
            label=label,
            head=head,
            pool=None if task.unit == "word" else spec.pool,
            **own.get(name, {}),
        )
        for (name, task), label, head in zip(tasks.items(), labels, heads, strict=True)
    }
