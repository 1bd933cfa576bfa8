"""Trained heads scored on any labelled data: a source, which is encoded on the fly, or a store.

A run of several tasks is scored on the examples that have all of its labels, as in training. If its tasks are over
stores of their own, each is scored on the examples with its label, in the data that serve it. A label that train lacks
counts as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.errors import UsageError, unknown_name
from fusionkit.evaluation.answers import HeadAnswers, LabelledExamples, RunEvaluation
from fusionkit.evaluation.of_tasks import Offer, chosen, column_of, key_of, served
from fusionkit.evaluation.over_source import has_labels, input_columns, live_answers, source_examples
from fusionkit.evaluation.over_store import has_stored_labels, stored_answers, stored_examples
from fusionkit.exported import open_heads
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.io.places import Place, place_of
from fusionkit.machine.devices import device_of
from fusionkit.plural import counted
from fusionkit.predict import predictor_of
from fusionkit.ragged import IntArray
from fusionkit.sources import SPLITS, Source, open_source
from fusionkit.store import Store, is_store, open_planned, open_store
from fusionkit.tasks import TASKS
from fusionkit.tasks.label_column import Gold, has_label

# A head, the labels of all examples, and the numbers of those to answer → answers, and probabilities if there are any.
Answers = Callable[[TrainedRun, list[Any], IntArray], tuple[list[Any], list[float | None] | None]]


def evaluate(
    *runs: str | Path,
    data: str | Place | Sequence[str | Place],
    split: str | None = None,
    tasks: Sequence[str] = (),
    labels: Mapping[str, str] | str | None = None,
    inputs: Mapping[str, str | None] | None = None,
    columns: Sequence[str] | None = None,
    config: str | None = None,
    limit: int | None = None,
    encoder: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    trust_modules: Sequence[str] = (),
    trust_encoder: bool = False,
) -> list[RunEvaluation]:
    """Score heads on labelled data.

    Args:
        runs: as for :func:`fusionkit.load`. data: a store, or a source as ``encode`` reads it; for runs of several
            tasks over stores of their own also several stores.
        split: train, validation or test; None means the last of them that has labels, as in training.
        tasks: the tasks to score, for runs of several tasks over stores of their own; none means those that the data
            serve (:mod:`fusionkit.evaluation.of_tasks`).
        labels: where labels have another column than in training, the column here by the learned column, or by the name
            of a task over a store of its own; a single column where all heads learned the same one.
        inputs: the column of a source by role (text, pair, tokens); None means the one of training, else a guess.
        columns, config, limit: for a source, as for :func:`fusionkit.sources.open_source`.

    Returns:
        one evaluation per run, in the order of ``runs``. Runs of which the data serve no task are left out.

    Raises:
        UsageError: no such run, data, split or column; data that the runs cannot read; or no label that they know.

    Example:
        >>> [found] = fusionkit.evaluate("runs/3f2a", data="new.jsonl")  # doctest: +SKIP
        >>> found.scores["accuracy"]                                     # doctest: +SKIP
        0.912
    """
    given = [data] if isinstance(data, (str, PurePath)) or not isinstance(data, Sequence) else list(data)
    if not given:
        raise UsageError("no data is given", expected="a store or a source", received="an empty list")
    places = [place_of(each) for each in given]
    how: dict[str, Any] = {"device": device, "encoder": encoder, "trust_remote_code": trust_remote_code}
    if len(places) > 1 or is_store(places[0]):
        of_sources = {"columns": columns, "config": config, "limit": limit, **(inputs or {})}
        if extra := [name for name, value in of_sources.items() if value]:
            raise UsageError(
                f"--{extra[0]} is for a source, and {places[0]} is a store", remedy=f"leave --{extra[0]} out"
            )
        trained = chosen(open_heads(runs, encoder, trust_modules, trust_encoder), tasks)
        return _over_stores(trained, places, split, labels, bool(tasks), how)
    source = open_source(str(given[0]), columns=columns, config=config, limit=limit)
    trained = chosen(open_heads(runs, encoder, trust_modules, trust_encoder), tasks)
    return _over_source(trained, source, places[0], split, labels, inputs or {}, bool(tasks), how)


def _over_source(
    trained: Sequence[TrainedRun],
    source: Source,
    place: Place,
    split: str | None,
    labels: Mapping[str, str] | str | None,
    inputs: Mapping[str, str | None],
    tasks_named: bool,
    how: Mapping[str, Any],
) -> list[RunEvaluation]:
    named = _named(_heads(trained), labels)
    known = _known(_heads(trained), named)
    split, skipped = _split(list(source.splits), split, place, lambda name: has_labels(source.splits[name], known))
    offer = Offer(place, source.splits[split].column_names)
    served_runs = [each for run in trained if (each := served(run, offer, named, tasks_named)) is not None]
    _refuse_unlabelled(_heads(served_runs or trained), named, source.name, offer)
    predictor = predictor_of(served_runs, **how)
    heads = list(predictor.runs.values())
    roles = input_columns(predictor, source, inputs)
    examples, notes = source_examples(source, split, roles, [(run, column_of(run, named)) for run in heads])
    answers, cut = live_answers(predictor, examples)
    by_head = {(run.folder, key_of(run)): answers[name] for name, run in predictor.runs.items()}
    notes += [f"{name} reads other input: not scored" for name in predictor.left_out]
    if cut:
        notes.append(f"{cut} of {counted(len(examples.frame), 'text')} cut to {predictor.max_length} sub-tokens")

    def answers_of(run: TrainedRun, gold: list[Any], numbers: IntArray) -> tuple[list[Any], list[float | None] | None]:
        found = [by_head[run.folder, key_of(run)][number] for number in numbers]
        likely = [chance for _, chance in found]
        return [answer for answer, _ in found], None if all(chance is None for chance in likely) else likely

    return _evaluations(predictor.trained, examples, named, answers_of, [*source.notes, *skipped, *notes])


def _over_stores(
    trained: Sequence[TrainedRun],
    places: Sequence[Place],
    split: str | None,
    labels: Mapping[str, str] | str | None,
    tasks_named: bool,
    how: Mapping[str, Any],
) -> list[RunEvaluation]:
    """Evaluate over each store the tasks that it serves, and merge the results by run."""
    if len(places) > 1 and (whole := [run for run in trained if not run.apart]):
        raise UsageError(
            "only a run of several tasks over stores of their own is scored over several stores",
            expected="one store for a run of one data set",
            received=f"{counted(len(places), 'store')} for the run {whole[0].folder.name}",
            remedy="evaluate over each by itself",
        )
    stores = [open_planned(place) for place in places]
    for store in stores:
        # A run that computes all layers from the text needs no states.
        if store.is_planned and any(run.delta is None or run.spec.from_layer is not None for run in trained):
            open_store(store.path)  # raises, and says what is missing
    named, found = _named(_heads(trained), labels), dict[Path, RunEvaluation]()
    for store in stores:
        one = _over_store(trained, store, split, named, tasks_named and len(stores) == 1, how)
        for each in one:
            before = found.get(each.run.folder)  # not by digest: a run and its export have the same one
            found[each.run.folder] = each if before is None else before.beside(each)
    return [found[run.folder] for run in trained if run.folder in found]


def _over_store(
    trained: Sequence[TrainedRun],
    store: Store,
    split: str | None,
    named: Mapping[str, str],
    tasks_named: bool,
    how: Mapping[str, Any],
) -> list[RunEvaluation]:
    known = _known(_heads(trained), named)
    split, skipped = _split(list(store.splits), split, store.path, lambda name: has_stored_labels(store, name, known))
    examples = stored_examples(store, split)
    offer = Offer(store.path, list(examples.frame.columns), store.digest)
    runs = [each for run in trained if (each := served(run, offer, named, tasks_named)) is not None]
    own = {**how, "device": device_of(how["device"])}
    _refuse_unlabelled(_heads(runs or trained), named, store.name, offer)

    def answers_of(run: TrainedRun, gold: list[Any], numbers: IntArray) -> tuple[list[Any], None]:
        return stored_answers(run, store, examples.split, gold, numbers, **own), None

    return _evaluations(runs, examples, named, answers_of, skipped)


def _heads(runs: Sequence[TrainedRun]) -> list[TrainedRun]:
    return [part for run in runs for part in run.parts.values()]


def _evaluations(
    runs: Sequence[TrainedRun],
    examples: LabelledExamples,
    named: Mapping[str, str],
    answers_of: Answers,
    notes: Sequence[str],
) -> list[RunEvaluation]:
    found, lacking_all = list[RunEvaluation](), list[str]()
    for run in runs:
        own, golds = list(notes), dict[str, Gold]()
        its_own = examples.digest in {digest for part in run.parts.values() for digest in _learned_from(part)}
        if examples.split == "train" and (its_own or run.data == examples.name):
            own.append(f"train of {examples.name} is what the head learned from: these scores are optimistic")
        among = None if run.apart else _labelled_by_all(run, examples, named)
        for name, part in run.parts.items():
            column = column_of(part, named)
            gold, present = examples.gold_of(part, column, among)
            if present.any():
                golds[name] = gold, present
            else:
                own.append(f"no example has a label in {column!r}: {key_of(part)} is not scored")
        heads = {}
        # Tasks over stores of their own are scored separately; others together, on the examples with all labels.
        groups = [[name] for name in golds] if run.apart else [list(golds)]
        for together in filter(None, groups):
            among = np.logical_and.reduce([golds[name][1] for name in together])
            numbers = np.flatnonzero(among)
            if not len(numbers):
                columns = ", ".join(column_of(run.parts[name], named) for name in together)
                raise UsageError(
                    f"no example of {examples.name} has a label in each of {columns}",
                    remedy="evaluate on data with all of them, or on a column alone",
                )
            if len(numbers) < len(among):
                whose = f"{together[0]}: " if run.apart else ""
                lacking = counted(len(among) - len(numbers), "example")
                own.append(f"{whose}{lacking} of {len(among):,} without a label: left out")
            for name in together:
                part, (gold, _) = run.parts[name], golds[name]
                answers, likely = answers_of(part, gold, numbers)
                own_gold = [gold[number] for number in numbers]
                heads[name] = HeadAnswers(part, examples, column_of(part, named), numbers, own_gold, answers, likely)
                own += heads[name].notes()
        if heads:
            found.append(RunEvaluation(run, heads, own))
        else:
            lacking_all += own[len(notes) :]
    if runs and not found:
        raise UsageError(
            f"{examples.name} has no label of these heads",
            expected="a label in an example or more",
            received=f"{', '.join({column_of(part, named) for part in _heads(runs)})} empty in all of {examples.split}",
            remedy="data without labels is for `fusionkit predict`",
        )
    if lacking_all:  # runs without a label are not among the results, which tell of them
        found[0] = replace(found[0], notes=[*found[0].notes, *lacking_all])
    return found


def _learned_from(part: TrainedRun) -> list[str]:
    """The digests of the stores that a head was trained on."""
    return [share.partition(":")[0] for share in (part.spec.mix or part.spec.store).split(",")]


def _labelled_by_all(run: TrainedRun, examples: LabelledExamples, named: Mapping[str, str]) -> NDArray[np.bool_] | None:
    """Of a run of several tasks the examples with a label in each column that has any, bool ``[examples]``: in training
    the others were left out, whatever they lack. None for a run of one task, or where no example has all of them.
    """
    columns: list[Any] = [examples.frame.get(column_of(part, named), []) for part in run.parts.values()]
    labelled = [has for column in columns if any(has := [has_label(value) for value in column])]
    among = np.logical_and.reduce(labelled) if len(labelled) > 1 else np.array([False])
    return among if among.any() else None


def _split(
    splits: Sequence[str], wanted: str | None, place: Place, labelled: Callable[[str], bool]
) -> tuple[str, list[str]]:
    """The split to score: the one that the user names, else the last one with labels, else the last one; and a note on
    each split that is passed over.
    """
    if wanted is not None:
        if wanted not in splits:
            raise unknown_name(f"split of {place}", wanted, splits)
        return wanted, []
    last_first = [name for name in reversed(SPLITS) if name in splits]
    found = next(filter(labelled, last_first), last_first[0])
    passed = last_first[: last_first.index(found)]
    return found, [f"{name} of {place} has no labels that these heads know: not used" for name in passed]


def _known(heads: Sequence[TrainedRun], named: Mapping[str, str]) -> dict[str, set[str] | None]:
    """The classes that heads know, by the column here; None where any label can be scored. As in training, a split
    without any label that a head of one class an example knows counts as unlabelled.
    """
    found: dict[str, set[str] | None] = {}
    for run in heads:
        column, task = column_of(run, named), TASKS[run.spec.task]
        known = found.get(column, set())
        one_class = task.unit == "example" and not task.numeric and not task.several
        found[column] = known | set(run.labels) if one_class and known is not None else None
    return found


def _named(heads: Sequence[TrainedRun], labels: Mapping[str, str] | str | None) -> dict[str, str]:
    """The columns that the user names for heads, by :func:`key_of`."""
    learned = list(dict.fromkeys(map(key_of, heads)))
    if isinstance(labels, str):
        if len(learned) > 1:
            raise UsageError(
                f"--label names one column for heads of {len(learned)}",
                expected="LEARNED=COLUMN for each that has another name here",
                received=labels,
                remedy=f"write --label {learned[0]}={labels}",
            )
        return dict.fromkeys(learned, labels)
    for name in labels or {}:
        if name not in learned:
            raise unknown_name("column that these heads learned", name, learned)
    return dict(labels or {})


def _refuse_unlabelled(heads: Sequence[TrainedRun], named: Mapping[str, str], name: str, offer: Offer) -> None:
    columns = list(dict.fromkeys(column_of(run, named) for run in heads))
    if wrong := [column for column in columns if column in named.values() and column not in offer.columns]:
        raise unknown_name("column --label", wrong[0], offer.columns)
    if not any(column in offer.columns for column in columns):
        raise UsageError(
            f"{name} has no labels of these heads",
            expected=f"a column {', '.join(columns)}",
            received=", ".join(map(str, offer.columns)),
            remedy="name it with --label; data without labels is for `fusionkit predict`",
        )
