"""The floors of a sweep: runs of the same table that no head is trained for, one for each draw of each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fit.train.floors import MAJORITY, refusal
from fusionkit.names import FLOORS
from fusionkit.specs import RunSpec
from fusionkit.tasks import tasks_of

NO_FLOOR, NO_HEAD = "none", "none"
# What a floor has in common with the heads that it stands beside; all other options of training say nothing of it.
SHARED = ("store", "mix", "evaluate_on", "task", "label", "shots", "draw", "draw_ids", "data_seed")
USUAL = ("classification", "pair-classification", "regression")  # those that always have the majority


def read_floors(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The floors that a user names, with commas or several times; none of them is ``()``, None the usual ones.

    Raises:
        UsageError: an unknown name, or ``none`` beside others.
    """
    if not given:
        return None
    names = [name.strip() for text in ([given] if isinstance(given, str) else given) for name in text.split(",")]
    for name in names:
        if name not in (*FLOORS, NO_FLOOR):
            raise unknown_name("floor", name, (*FLOORS, NO_FLOOR))
    if NO_FLOOR in names and len(names) > 1:
        raise UsageError(
            "there are floors or there is none", received=", ".join(names), remedy="drop none, or the rest"
        )
    return () if NO_FLOOR in names else tuple(dict.fromkeys((MAJORITY, *names)))


def floors_of(specs: Iterable[RunSpec], names: Sequence[str] | None) -> list[RunSpec]:
    """The floors of some runs, each once, in their order.

    Args:
        names: None is the majority for tasks of one label or number an example, and nothing for others.

    Raises:
        UsageError: a task has no such floor.
    """
    found = dict[RunSpec, None]()
    for spec in specs:
        tasks = [*tasks_of(spec.task).values()]
        task = tasks[0] if len(tasks) == 1 else None
        usual = (MAJORITY,) if task is not None and task.name in USUAL else ()
        for name in usual if names is None else names:
            if reason := refusal(name, task):
                raise UsageError(
                    f"the task {spec.task} has no floor {name}",
                    expected=f"--floor {NO_FLOOR}, or a task of one label or number an example",
                    received=f"--floor {name}",
                    remedy=reason,
                )
            shared = {field: getattr(spec, field) for field in SHARED}
            found[RunSpec(**shared, fusion=name, head=NO_HEAD)] = None
    return [*found]
