"""Whether a head fits a task: one from fusionkit's table, or one from elsewhere that declares the task."""

from __future__ import annotations

from fusionkit.errors import UsageError, unknown_name
from fusionkit.heads import HEADS, LM_HEADS, REGISTRY, each_head, head_entry, reads_sequences, sequences_of
from fusionkit.heads.table import OWN_TASKS
from fusionkit.tasks.task import Task


def table_heads(task: Task, alone: bool = True) -> list[str]:
    """The heads of the table that fit a task; beside other tasks (not ``alone``), none that reads whole sequences."""
    return [head for head in task.heads if alone or not reads_sequences(head)]


def check_head(task: Task, head: str, name: str = "") -> None:
    """Refuse a head that a task cannot have.

    Args:
        name: the task's name in a run of several tasks, else empty.

    Raises:
        UsageError: an unknown name, a module that cannot be imported, or a head for other tasks.
    """
    alone, called = not name, name or task.name
    known = table_heads(task, alone)
    if head in known:
        return
    if not is_external(head):
        raise unknown_name(f"head for {called}", head, known)
    entry = head_entry(head)
    if task.name not in entry.tasks or (entry.sequences is not None and not alone):
        raise UsageError(
            f"{head!r} is no head for {called}",
            expected=f"a head of {task.name}" + ("" if alone else " that reads no whole sequences"),
            received=f"one of {', '.join(entry.tasks)}"
            + (f" that reads {entry.sequences} whole sequences" if entry.sequences else ""),
            remedy=f"choose one of {', '.join(known)}"
            + (f", or add {task.name!r} to its `tasks`" if task.name in set(OWN_TASKS) - set(entry.tasks) else ""),
        )


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


def is_external(head: str) -> bool:
    """Whether a head comes from an import path or an installed package, not from fusionkit's table."""
    return ":" in head or (head not in HEADS and head in REGISTRY.names())


def check_name(text: str) -> None:
    """Refuse a name that no head of any task has; errors as :func:`check_head`."""
    for head in each_head(text):
        if head not in LM_HEADS:
            head_entry(head)
