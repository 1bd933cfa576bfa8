"""Several tasks, each over its own store of one encoder's states, with one head per task.

The tasks share no examples, so a step trains on one task's minibatch. Several tasks may use one store. Each task has
the splits that a run of this task alone would have.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusionkit.dataset.compatibility import check_same_encoder, distinct, legible_names, shared_layers
from fusionkit.dataset.concatenation import with_layers
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import joined_data, load_task, require_train
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fusions import sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.names import MEAN
from fusionkit.plural import counted
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS, Task, parts_of
from fusionkit.tasks.joint import NAME, fitting_heads


@dataclass(frozen=True)
class TaskChoice:
    """A task as the user names it. Attributes: task, label, head, batch_size: None is the default."""

    name: str
    store: Store
    task: str | None = None
    label: str | None = None
    head: str | None = None
    batch_size: int | None = None


class TaskStores:
    """Stores of several tasks.

    Raises:
        UsageError: fewer than two tasks, two of one name, or two that learn one column; stores of different encoders,
            or without a train split or the column; a head that does not fit its task.

    Attributes:
        tasks: each task with its column, by name. heads: as a run's spec has them. store_of: by the task's name.
        stores: all stores, each once. layers: those that every store has. rows, hidden, manifest, digest, path: those
            of the first store; all stores agree where it matters. name: of the tasks, ``sst2 + mrpc``.
    """

    def __init__(self, choices: Sequence[TaskChoice]) -> None:
        self.choices = tuple(choices)
        _check_names(choices)
        self.stores = distinct([each.store for each in choices])
        for store in self.stores:
            require_train(store)
        check_same_encoder(self.stores, but=("input", "pairs as"))
        self.tasks = {each.name: _chosen(each) for each in choices}
        self.store_of = {each.name: each.store for each in choices}
        self.heads = fitting_heads(
            {name: task for name, (task, _) in self.tasks.items()},
            ",".join(f"{each.name}={each.head}" for each in choices if each.head) or None,
        )
        learned = [(self.store_of[name].digest, column) for name, (_, column) in self.tasks.items()]
        if (most := Counter(learned).most_common(1)[0])[1] > 1:
            raise UsageError(
                f"several tasks learn the column {most[0][1]!r} of one store",
                expected="a column or a store of its own for each task",
                received=", ".join(f"{name}={column}" for name, (_, column) in self.tasks.items()),
                remedy="name other columns with --label NAME=COLUMN",
            )
        first = self.stores[0]
        self.path, self.rows, self.hidden, self.digest = first.path, first.rows, first.hidden, first.digest
        self.manifest: dict[str, Any] = first.manifest
        self.layers = shared_layers(self.stores)
        self.name = " + ".join(self.tasks)
        self._names = legible_names(self.stores)
        self._known: dict[tuple[Any, ...], TaskData] = {}

    @property
    def text(self) -> str:
        """The tasks' stores as a run's spec keeps them."""
        return ",".join(each.store.digest for each in self.choices)

    @property
    def batches(self) -> str | None:
        """The minibatch size of each task as a spec keeps them, 0 for the run's; None if no task has its own."""
        sizes = [each.batch_size or 0 for each in self.choices]
        return ",".join(map(str, sizes)) if any(sizes) else None

    def load(self, spec: RunSpec) -> TaskData:
        """The data of all tasks: the first task's, with the others in its ``others``; errors as
        :func:`fusionkit.dataset.labels.load_task`, with the task's name in front.
        """
        found, notes = dict[str, TaskData](), list[str]()
        for name, part in parts_of(spec).items():
            data = self._part(name, part)
            found[name] = data
            notes += [f"{name}: {note}" for note in data.notes]
            notes.append(
                f"{name}: {counted(len(data.train), 'example')} to learn from, {len(data.validation):,} of validation"
            )
        lacking = [name for name, data in found.items() if data.test is None]
        if 0 < len(lacking) < len(found):
            notes.append(f"{', '.join(lacking)} without a labelled test split: all scores are of validation")
        manifests = [self.store_of[name].manifest for name in found]
        for of_pairs, option in itertools.product((False, True), ("max_length", "compute_dtype")):
            alike = [each["identity"] for each in manifests if (each["columns"]["pair"] is not None) == of_pairs]
            told = dict.fromkeys(str(identity[option]) for identity in alike)
            if len(told) > 1:  # one pass of the encoder answers all tasks over texts, or all over pairs
                flag = option.replace("_", "-")
                notes.append(f"stores with --{flag} {' and '.join(told)}: `predict` takes no such run")
        return joined_data(found, notes, apart=True)

    def record(self, spec: RunSpec) -> dict[str, Any]:
        """The fields of the tasks' data in a run's record."""
        return {"evaluated": self.name, "parts": None}

    def _part(self, name: str, part: RunSpec) -> TaskData:
        store = self.store_of[name]
        whole, unpooled = sees_examples(part.fusion), reads_sequences(part.head)
        if (key := (name, part.pool, whole, unpooled)) not in self._known:
            try:
                data = load_task(store, TASKS[part.task], part.label, part.pool, whole, unpooled)
            except FusionkitError as error:
                raise error.at(f"task {name}") from error
            own: dict[str, Any] = {"name": name}
            for split in ("train", "validation", "test"):
                if (there := getattr(data, split)) is not None:
                    own[split] = replace(with_layers(there, store, self.layers), name=name)
            self._known[key] = replace(data, **own)
        return self._known[key]


def _chosen(choice: TaskChoice) -> tuple[Task, str]:
    try:
        return choose_task(choice.store, choice.task, choice.label)
    except UsageError as error:
        remedy = f"choose its column with --label {choice.name}=COLUMN, or its task with --task {choice.name}=TASK"
        raise error.at(f"task {choice.name}, {choice.store.path}", remedy) from error


def _check_names(choices: Sequence[TaskChoice]) -> None:
    names = [each.name for each in choices]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(
            f"two tasks have the name {twice[0]!r}",
            expected="a name of its own for each task",
            received="; ".join(f"{each.name}: {each.store.path}" for each in choices),
            remedy="rename a store, or write a sweep file with a list of `tasks:` and their names",
        )
    if wrong := [name for name in names if not NAME.fullmatch(name) or name == MEAN]:
        raise UsageError(
            f"{wrong[0]!r} cannot name a task",
            expected=f"letters, digits, spaces, - and _; not {MEAN}, the name of the mean over tasks",
            received=wrong[0],
            remedy="rename the store, or write a sweep file with a list of `tasks:` and their names",
        )
    if len(names) < 2:
        raise UsageError(
            "--task multi needs two tasks or more",
            expected="stores of two tasks, or a store with --label NAME=COLUMN for each of its columns",
            received=", ".join(names) or "none",
            remedy="name more stores, or leave --task multi out",
        )
