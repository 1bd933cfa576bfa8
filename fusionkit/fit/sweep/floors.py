"""The floors of a sweep: runs in the same table for which no head is trained, one for each draw of each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusionkit.errors import UsageError
from fusionkit.fit.sweep.checks import NO_FLOOR
from fusionkit.fit.train.floors import MAJORITY, refusal
from fusionkit.specs import RunSpec
from fusionkit.tasks import tasks_of

NO_HEAD = "none"
# The fields that a floor shares with the heads it is compared with; no other training option applies to it.
SHARED = ("store", "mix", "evaluate_on", "task", "label", "shots", "draw", "draw_ids", "data_seed")
USUAL = ("classification", "pair-classification", "regression")  # tasks with the majority floor by default


def floors_of(specs: Iterable[RunSpec], names: Sequence[str] | None) -> list[RunSpec]:
    """The floors of some runs, each once, in their order.

    Args:
        names: None is the majority floor for tasks with one label or number per example, and no floor for others.

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
