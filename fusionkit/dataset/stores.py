"""What runs are trained over: a store, a mix of stores under one task, or the stores of several tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusionkit.dataset.infer_task import choose_tasks, guess_note
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.errors import UsageError
from fusionkit.specs import MASKED, RunSpec
from fusionkit.store import Store
from fusionkit.tasks import Task, parts_of

Stores = Store | Mix | TaskStores


def stores_of(stores: Stores) -> Sequence[Store]:
    """Each store once, the first one first."""
    return (stores,) if isinstance(stores, Store) else stores.stores


def shares_of(stores: Stores) -> Sequence[Share]:
    """The stores that are trained on, each with the share of it that is."""
    return stores.parts if isinstance(stores, Mix) else [Share(store) for store in stores_of(stores)]


def refuse_other_rows(store: Stores) -> None:
    """Raise UsageError for a store whose rows are not sub-tokens, which methods that train the encoder read."""
    if store.rows not in ("tokens", MASKED):
        raise UsageError(
            "a method that trains through the encoder reads whole sequences of sub-tokens",
            expected="a store of rows of tokens",
            received=f"rows of {store.rows}",
            remedy="encode again with --rows tokens; `encode --parts 0/N` is enough where no run is frozen",
        )


def choose_tasks_of(stores: Stores, task: str | None, label: str | None) -> Mapping[str, tuple[Task, str]]:
    """The tasks of runs over these stores by name, each with its column: as the stores of several tasks hold them, else
    as :func:`fusionkit.dataset.infer_task.choose_tasks` has them.
    """
    if isinstance(stores, TaskStores):
        return stores.tasks
    return choose_tasks(stores, task, label) if isinstance(stores, Store) else stores.choose_tasks(task, label)


def guess_notes(stores: Stores, task: str | None, label: str | None) -> list[str]:
    """For each task that learns a column guessed among several, a note that names the others."""
    if isinstance(stores, TaskStores):
        found = {f"{each.name}: ": guess_note(each.store, each.task, each.label) for each in stores.choices}
    else:
        found = {"": guess_note(stores_of(stores)[0], task, label)}
    return [name + note for name, note in found.items() if note]


def source_of(spec: RunSpec, stores: Mapping[str, Store]) -> Stores:
    """What a run was trained over, made from stores by their digests; UsageError if one is missing."""

    def one(digest: str) -> Store:
        if digest not in stores:
            raise UsageError(
                f"the store {digest} is not there",
                expected="the stores that the run was fitted on",
                received=", ".join(str(store.path) for store in stores.values()) or "none",
                remedy="name their folder with --store",
            )
        return stores[digest]

    if spec.is_multi:
        parts = parts_of(spec).items()
        return TaskStores([TaskChoice(name, one(part.store), part.task, part.label, part.head) for name, part in parts])
    if spec.mix is None and spec.evaluate_on is None:
        return one(spec.store)
    shares = [part.partition(":") for part in (spec.mix or spec.store).split(",")]
    judges = [one(digest) for digest in (spec.evaluate_on or "").split(",") if digest]
    return Mix([Share(one(digest), part or None) for digest, _, part in shares], judges)
