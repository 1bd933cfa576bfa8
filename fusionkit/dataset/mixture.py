"""Several stores under one task: shares of their train splits are joined; any of them gives validation and test.

Classes are matched by name. They are the classes of the whole train splits, not of a draw, so that the shape of a run
does not depend on its seed. A label of an evaluation store that no train split has counts as an error, like any test
label that train lacks.

Source: few-shot transfer, all of one language and 5 % of another, is table 3 of Cao et al. (2022).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusionkit.dataset.compatibility import (
    check_same_encoder,
    distinct,
    legible_names,
    refuse_disjoint,
    refuse_without,
    shared_layers,
)
from fusionkit.dataset.concatenation import join_splits, with_layers
from fusionkit.dataset.control import control_columns, label_pool
from fusionkit.dataset.draws import share_draw
from fusionkit.dataset.infer_task import choose_task, choose_tasks
from fusionkit.dataset.labels import (
    class_names,
    counted_classes,
    joined_data,
    label_columns,
    labelled_by_all,
    require_train,
    scheme_notes,
)
from fusionkit.dataset.share import Share
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.targets import Columns, carve_validation, match_splits, without_strange_test
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import DataError, UsageError
from fusionkit.fusions import sees_examples
from fusionkit.heads import reads_sequences
from fusionkit.plural import counted
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of
from fusionkit.tasks import TASKS, Task, parts_of


@dataclass(frozen=True)
class _Matched:
    """The data that all draws of one task share.

    Attributes:
        data: the task's data with the first store's train split, which the drawn shares replace.
        trains: each part's whole train split, by its store's digest.
    """

    data: TaskData
    trains: dict[str, TaskSplit]


class Mix:
    """Stores to train on together, and stores to evaluate on; UsageError if one head cannot read them all.

    Args:
        parts: the stores to train on, in this order. evaluation_stores: the validation split of the first chooses the
            epoch, the test split of each is scored; none means the store of the last part.

    Attributes:
        stores: all stores, each once. layers: those that every store has. rows, hidden, manifest, digest: those of the
            first store; all stores agree where it matters. name: its name in reports, ``en + de:5%``.
    """

    def __init__(self, parts: Sequence[Share], evaluation_stores: Sequence[Store] = ()) -> None:
        trained = [part.store for part in parts]
        self.stores = distinct([*trained, *evaluation_stores])
        if len(distinct(trained)) < len(trained):
            raise UsageError(
                "a store is named twice to train on",
                expected="each once, with one share",
                received=", ".join(f"{part.store.path}{part.suffix()}" for part in parts),
                remedy="name it once",
            )
        for store in trained:
            require_train(store, "encode one, or name the store with --evaluate-on only")
        check_same_encoder(self.stores)
        first = self.stores[0]
        ours = {store.digest: store for store in self.stores}
        self.parts = tuple(parts)
        self.evaluation_stores = tuple(ours[store.digest] for store in distinct(evaluation_stores or trained[-1:]))
        self.path, self.rows, self.hidden, self.digest = first.path, first.rows, first.hidden, first.digest
        self.manifest: dict[str, Any] = first.manifest
        self.layers = shared_layers(self.stores)
        self._names = legible_names(self.stores)
        self.name = " + ".join(self._names[part.store.digest] + part.suffix() for part in parts)
        self._matched: dict[tuple[Any, ...], _Matched] = {}

    @property
    def text(self) -> str | None:
        """The parts as a run's spec keeps them; None for the whole of one store."""
        plain = len(self.parts) == 1 and self.parts[0].part is None
        return None if plain else ",".join(part.store.digest + part.suffix() for part in self.parts)

    @property
    def evaluate_on(self) -> str | None:
        """The evaluation stores as a run's spec keeps them; None for the last store that is trained on."""
        digests = [store.digest for store in self.evaluation_stores]
        return None if digests == [self.parts[-1].store.digest] else ",".join(digests)

    def choose_tasks(self, task: str | None, label: str | None) -> dict[str, tuple[Task, str]]:
        """As :func:`fusionkit.dataset.infer_task.choose_tasks` for the first store; all stores need the columns."""
        chosen = choose_tasks(self.stores[0], task, label)
        for each, column in chosen.values():
            if each.unit != "row":  # masked sub-tokens of several stores are refused later, and are no column
                refuse_without(self.stores, column)
            for store in self.stores[1:]:
                choose_task(store, each.name, column)
        return chosen

    def load(self, spec: RunSpec) -> TaskData:
        """The data of a run: the joined shares that its ``data_seed`` draws, and the splits of the evaluation stores.

        UsageError if a share is larger than its store or the labels or rows do not fit, DataError for too few labels.
        """
        data, notes = dict[str, TaskData](), list[str]()
        for name, part in parts_of(spec).items():
            found = self._match(part, spec)
            drawn = self._drawn(found, spec.data_seed)
            told = ", ".join(f"{counted(len(train), 'example')} of {self._names[s.digest]}" for s, train in drawn)
            notes += [*found.data.notes, "train: " + told]
            train = join_splits(
                [(self._names[store.digest], train, positions_of(self.layers, store.layers)) for store, train in drawn]
            )
            data[name] = replace(found.data, train=train, notes=notes)
        return next(iter(data.values())) if len(data) == 1 else joined_data(data, notes)

    def record(self, spec: RunSpec) -> dict[str, Any]:
        """The fields of the mix in a run's record: each store's share, and the examples drawn from it."""
        drawn = self._drawn(self._match(next(iter(parts_of(spec).values())), spec), spec.data_seed)
        parts = [
            {
                "data": self._names[part.store.digest],
                "store": part.store.digest,
                "share": part.part or "all",
                "examples": len(train),
                "draw": None if part.part is None else train.ids,
            }
            for part, (_, train) in zip(self.parts, drawn, strict=True)
        ]
        evaluated = ", ".join(self._names[store.digest] for store in self.evaluation_stores)
        return {"evaluated": evaluated, "parts": parts}

    def _drawn(self, found: _Matched, data_seed: int) -> list[tuple[Store, TaskSplit]]:
        drawn = []
        for part in self.parts:
            train = found.trains[part.store.digest]
            if part.part is not None:
                train = train.subset(share_draw(len(train), part.count(len(train)), data_seed))
            drawn.append((part.store, train))
        return drawn

    def _match(self, part: RunSpec, run: RunSpec) -> _Matched:
        """The cached data of one task of a run; with several tasks, of examples with a label in every column."""
        several = part != run
        whole, unpooled = several or sees_examples(part.fusion), reads_sequences(part.head)
        key = (part.task, part.label, part.control, part.pool, whole, unpooled, run.label if several else None)
        if key not in self._matched:
            self._matched[key] = self._matched_now(part, whole, unpooled, parts_of(run) if several else None)
        return self._matched[key]

    def _matched_now(
        self, part: RunSpec, whole: bool, unpooled: bool, several: Mapping[str, RunSpec] | None
    ) -> _Matched:
        """As :meth:`_match`, without the cache; ``several``: all tasks of the run, where there are several."""
        task, label = TASKS[part.task], part.label
        notes = {store.digest: list[str]() for store in self.stores}
        columns = {}
        for store in self.stores:
            told = notes[store.digest]
            among = None if several is None else labelled_by_all(store, several, told)
            columns[store.digest] = label_columns(store, task, label, told, among)
        trained = [part.store for part in self.parts]
        gold = {store.digest: _labels(columns[store.digest], store in trained) for store in self.stores}
        for store in self.stores:
            if not gold[store.digest]:
                raise DataError(f"no example of {store.path} has a label in column {label!r}", remedy="leave it out")
        names = class_names([each for store in trained for each in gold[store.digest]], task, label)
        if names:
            labels = {key: {one for row in found for one in task.classes(row)} for key, found in gold.items()}
            refuse_disjoint(self.stores, label, labels)
        for store in self.evaluation_stores:
            ours = columns[store.digest]
            columns[store.digest] = without_strange_test(ours, task, names, notes[store.digest])
        if part.control:
            pool = label_pool(task, [gold[store.digest] for store in trained])
            columns = {s.digest: control_columns(s, columns[s.digest], task, label, pool) for s in self.stores}
        splits = {}
        for store in self.stores:
            ours = columns[store.digest]
            if store not in trained and store is not self.evaluation_stores[0]:
                ours = {name: ours[name] for name in ours if name == "test"}
            elif store not in self.evaluation_stores:
                ours = {"train": ours["train"]}
            told = notes[store.digest]
            splits[store.digest] = match_splits(store, ours, task, part.pool, names, told, whole, unpooled)
        chooser = self.evaluation_stores[0]
        if "validation" not in (theirs := splits[chooser.digest]):
            if "train" not in theirs:
                raise UsageError(
                    f"{chooser.path} has nothing to choose the best epoch by",
                    expected="a validation split with labels, or a train split to take a tenth of",
                    received=", ".join(chooser.splits),
                    remedy="name a store that has one first, with --evaluate-on",
                )
            stay, theirs["validation"] = carve_validation(chooser, theirs["train"], notes[chooser.digest])
            theirs["train"] = stay
        trains = {store.digest: splits[store.digest]["train"] for store in trained}
        validation = with_layers(theirs["validation"], chooser, self.layers)
        classes, default = counted_classes(names, [each for train in trains.values() for each in train.gold], task)
        tests = self._tests({store.digest: splits[store.digest].get("test") for store in self.evaluation_stores})
        first, test = trains[trained[0].digest], next(iter(tests.values()), None)
        told = [*scheme_notes(task, names), *self._told(notes, tests)]
        fields = (task, label, part.pool, names, classes, default, first, validation, test, told)
        return _Matched(TaskData(*fields, tests=tests if len(self.evaluation_stores) > 1 else {}), trains)

    def _tests(self, found: dict[str, TaskSplit | None]) -> dict[str, TaskSplit]:
        lacking = [store for store in self.evaluation_stores if found[store.digest] is None]
        if lacking and len(self.evaluation_stores) > 1:
            raise UsageError(
                f"{', '.join(str(store.path) for store in lacking)} has no test split with labels",
                expected="one in every store named with --evaluate-on",
                remedy="leave such stores out",
            )
        return {
            self._names[store.digest]: with_layers(test, store, self.layers)
            for store in self.evaluation_stores
            if (test := found[store.digest]) is not None
        }

    def _told(self, notes: dict[str, list[str]], tests: Iterable[str]) -> list[str]:
        scored = f"test of {', '.join(tests)} is scored" if tests else "there is no labelled test split to score"
        default = "" if self.evaluate_on else " (the last store named; --evaluate-on names others)"
        told = [f"validation of {self._names[self.evaluation_stores[0].digest]} chooses the epoch, {scored}{default}"]
        if any(store.layers != self.layers for store in self.stores):
            told.append(f"layers {', '.join(map(str, self.layers))}: those that every store has")
        return told + [f"{self._names[digest]}: {note}" for digest, lines in notes.items() for note in lines]


def _labels(columns: Columns, trained: bool) -> list[Any]:
    """A store's labels: of train where it is trained on, else of all its splits."""
    return [
        each
        for name, (gold, present) in columns.items()
        if name == "train" or not trained
        for each, ok in zip(gold, present, strict=True)
        if ok
    ]


def mix_of(parts: Sequence[Share], evaluation_stores: Sequence[Store] = ()) -> Store | Mix:
    """What to fit over: the store itself if only one is named, trained on whole and evaluated on; else a mix."""
    mix = Mix(parts, evaluation_stores)
    return parts[0].store if mix.text is None and mix.evaluate_on is None else mix
