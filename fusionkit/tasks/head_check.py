"""Whether a head fits a task: one of the task's own, or somebody's that says so."""

from __future__ import annotations

from fusionkit.errors import UsageError, unknown_name
from fusionkit.heads import HEADS, LM_HEADS, REGISTRY, head_entry
from fusionkit.tasks.task import Task

HALVES = ("classification", "tagging")  # of a joint head, in their order


def check_head(task: Task, head: str) -> None:
    """Refuse a head that a task cannot have.

    Raises:
        UsageError: an unknown name, a module that cannot be imported, or a head for other tasks.
    """
    if head in task.heads:
        return
    parts = head.split("+")
    wanted = HALVES if task.name == "joint" else (task.name,)
    if len(parts) != len(wanted) or not any(map(_is_somebodys, parts)):
        raise unknown_name(f"head for {task.name}", head, task.heads)
    for part, of in zip(parts, wanted, strict=True):
        entry = head_entry(part)
        if of not in entry.tasks or (task.name == "joint" and entry.sequences is not None):
            raise UsageError(
                f"{part!r} is no head for {task.name}",
                expected=f"a head of {of}" + (" that reads no whole sequences" if task.name == "joint" else ""),
                received=f"one of {', '.join(entry.tasks)}"
                + (f" that reads {entry.sequences} whole sequences" if entry.sequences else ""),
                remedy=f"choose one of {', '.join(task.heads)}, or add {of!r} to its `tasks`",
            )


def _is_somebodys(head: str) -> bool:
    return ":" in head or (head not in HEADS and head in REGISTRY.names())


def check_name(head: str) -> None:
    """Refuse a name that no head has, of whatever task; errors as :func:`check_head`."""
    for part in head.split("+"):
        if part not in LM_HEADS:
            head_entry(part)
