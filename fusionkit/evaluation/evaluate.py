"""Trained heads scored on any labelled data: a source, which is encoded on the fly, or a store.

A run of several tasks is scored on the examples that have all of its labels, as in training. A label that train lacks
counts as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.devices import device_of
from fusionkit.errors import UsageError, unknown_name
from fusionkit.evaluation.answers import HeadAnswers, LabelledExamples, RunEvaluation
from fusionkit.evaluation.over_source import input_columns, live_answers, source_examples, told
from fusionkit.evaluation.over_store import stored_answers, stored_examples
from fusionkit.exported import open_heads
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.places import Place, place_of
from fusionkit.plural import counted
from fusionkit.predict import load
from fusionkit.ragged import IntArray
from fusionkit.sources import SPLITS, open_source
from fusionkit.store import is_store, open_store

Gold = tuple[list[Any], NDArray[np.bool_]]
# A head's answers about some examples, whose labels are given, with their probabilities where there are any.
Answers = Callable[[TrainedRun, list[Any], IntArray], tuple[list[Any], list[float | None] | None]]


def evaluate(
    *runs: str | Path,
    data: str | Place,
    split: str | None = None,
    labels: Mapping[str, str] | str | None = None,
    inputs: Mapping[str, str | None] | None = None,
    columns: Sequence[str] | None = None,
    config: str | None = None,
    limit: int | None = None,
    encoder: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    trust_modules: Sequence[str] = (),
) -> list[RunEvaluation]:
    """Score heads on labelled data.

    Args:
        runs: as of :func:`fusionkit.load`. data: a store, or a source as ``encode`` reads it.
        split: train, validation or test; None is test, else validation, else train.
        labels: where labels have another column than in training: by the learned column the one here, or one for all.
        inputs: by role (text, pair, tokens) the column of a source; None is the one of training, else a guess.
        columns, config, limit: of a source, as of :func:`fusionkit.sources.open_source`.

    Returns:
        one a run, in the order of ``runs``.

    Raises:
        UsageError: no such run, data, split or column; data that the runs cannot read; or no label that they know.

    Example:
        >>> [found] = fusionkit.evaluate("runs/3f2a", data="new.jsonl")  # doctest: +SKIP
        >>> found.scores["accuracy"]                                     # doctest: +SKIP
        0.912
    """
    place = place_of(data)
    if is_store(place):
        of_sources = {"columns": columns, "config": config, "limit": limit, **(inputs or {})}
        if extra := [name for name, value in of_sources.items() if value]:
            raise UsageError(f"--{extra[0]} is for a source, and {data} is a store", remedy=f"leave --{extra[0]} out")
        trained = open_heads(runs, encoder, trust_modules)
        _refuse_apart(trained)
        return _over_store(trained, place, split, labels, device)
    source = open_source(str(data), columns=columns, config=config, limit=limit)
    predictor = load(
        *runs, device=device, encoder=encoder, trust_remote_code=trust_remote_code, trust_modules=trust_modules
    )
    _refuse_apart(predictor.trained)
    heads = list(predictor.runs.values())
    named = _named(heads, labels)
    chosen = _chosen(list(source.splits), split, str(data))
    roles = input_columns(predictor, source, inputs or {})
    examples, notes = source_examples(source, chosen, roles, [(run, named[run.spec.label]) for run in heads])
    _refuse_unlabelled(heads, named, examples)
    answers, cut = live_answers(predictor, examples)
    by_head = {(run.digest, run.spec.label): answers[name] for name, run in predictor.runs.items()}
    if cut:
        notes.append(f"{cut} of {len(examples.frame)} texts are longer than {predictor.max_length} sub-tokens: cut")

    def answers_of(run: TrainedRun, gold: list[Any], numbers: IntArray) -> tuple[list[Any], list[float | None] | None]:
        found = [told(by_head[run.digest, run.spec.label][number]) for number in numbers]
        likely = [chance for _, chance in found]
        return [answer for answer, _ in found], None if all(chance is None for chance in likely) else likely

    return _evaluations(predictor.trained, examples, named, answers_of, [*source.notes, *notes])


def _refuse_apart(runs: Sequence[TrainedRun]) -> None:
    """UsageError for a run of several tasks over stores of their own: one data set has not the labels of all."""
    if apart := [run.folder.name for run in runs if run.apart]:
        raise UsageError(
            f"the run {apart[0]} learned several tasks, each over data of its own",
            expected="a run of one task, or of several columns of one store",
            received="one data set for all of them",
            remedy="`fusionkit results` has its scores, and `fusionkit predict` its answers",
        )


def _over_store(
    trained: Sequence[TrainedRun],
    place: Place,
    split: str | None,
    labels: Mapping[str, str] | str | None,
    device: str,
) -> list[RunEvaluation]:
    store, on = open_store(place), device_of(device)
    chosen = _chosen(list(store.splits), split, str(place))
    heads = [part for run in trained for part in run.parts.values()]
    named, examples = _named(heads, labels), stored_examples(store, chosen)
    _refuse_unlabelled(heads, named, examples)

    def answers_of(run: TrainedRun, gold: list[Any], numbers: IntArray) -> tuple[list[Any], None]:
        return stored_answers(run, store, chosen, gold, numbers, on), None

    return _evaluations(trained, examples, named, answers_of, [])


def _evaluations(
    runs: Sequence[TrainedRun],
    examples: LabelledExamples,
    named: Mapping[str, str],
    answers_of: Answers,
    notes: Sequence[str],
) -> list[RunEvaluation]:
    found = []
    for run in runs:
        own, golds = list(notes), dict[str, Gold]()
        if examples.split == "train" and run.data == examples.name:
            own.append(f"train of {examples.name} is what the head learned from: such scores flatter")
        for name, part in run.parts.items():
            column = named[part.spec.label]
            gold, present, _ = examples.gold_of(part, column)
            if present.any():
                golds[name] = gold, present
            else:
                own.append(f"no example has a label in {column!r}: {part.spec.label} is not scored")
        if not golds:
            continue
        among = np.logical_and.reduce([present for _, present in golds.values()])
        numbers = np.flatnonzero(among)
        if not len(numbers):
            raise UsageError(
                f"no example of {examples.name} has a label in each of {', '.join(named[p] for p in named)}",
                remedy="evaluate on data with all of them, or on a column alone",
            )
        if len(numbers) < len(among):
            own.append(f"{counted(len(among) - len(numbers), 'example')} of {len(among):,} without a label: left out")
        heads = {}
        for name, (gold, _) in golds.items():
            part = run.parts[name]
            answers, likely = answers_of(part, gold, numbers)
            own_gold = [gold[number] for number in numbers]
            heads[name] = HeadAnswers(part, named[part.spec.label], numbers, own_gold, answers, likely)
            own += heads[name].notes()
        found.append(RunEvaluation(run, examples, heads, own))
    return found


def _chosen(splits: Sequence[str], wanted: str | None, place: str) -> str:
    if wanted is not None:
        if wanted not in splits:
            raise unknown_name(f"split of {place}", wanted, splits)
        return wanted
    return next(name for name in reversed(SPLITS) if name in splits)


def _named(heads: Sequence[TrainedRun], labels: Mapping[str, str] | str | None) -> dict[str, str]:
    """By the column that a head learned the column of its labels here."""
    learned = list(dict.fromkeys(run.spec.label for run in heads))
    if isinstance(labels, str):
        if len(learned) > 1:
            raise UsageError(
                f"--label names one column for heads of {len(learned)}",
                expected="LEARNED=COLUMN for each that has another name here",
                received=labels,
                remedy=f"write --label {learned[0]}={labels}",
            )
        return {learned[0]: labels}
    for name in labels or {}:
        if name not in learned:
            raise unknown_name("column that these heads learned", name, learned)
    return {name: name for name in learned} | dict(labels or {})


def _refuse_unlabelled(heads: Sequence[TrainedRun], named: Mapping[str, str], examples: LabelledExamples) -> None:
    there = set(examples.frame.columns)
    if wrong := [column for learned, column in named.items() if column != learned and column not in there]:
        raise unknown_name("column --label", wrong[0], there)
    if not any(named[run.spec.label] in there for run in heads):
        raise UsageError(
            f"{examples.name} has no labels of these heads",
            expected=f"a column {', '.join(dict.fromkeys(named.values()))}",
            received=", ".join(map(str, examples.frame.columns)),
            remedy="name it with --label; data without labels is for `fusionkit predict`",
        )
