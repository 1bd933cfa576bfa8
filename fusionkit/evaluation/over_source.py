"""Heads over a source of examples: one pass of the encoder, as ``predict`` makes it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from fusionkit.errors import UsageError, unknown_name
from fusionkit.evaluation.answers import LabelledExamples
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.predict import BLOCK, Answer, Label, Labels, Number, Predictor
from fusionkit.sources import Columns, Examples, Source, guess_columns, prepared
from fusionkit.tasks.label_column import is_known

Scored = tuple[Any, float | None]  # an answer, and the probability of a label
ROLES_OF = {"texts": ("text",), "pairs": ("text", "pair"), "words": ("tokens",)}


def input_columns(predictor: Predictor, source: Source, given: Mapping[str, str | None]) -> dict[str, str]:
    """The columns of a source that hold the runs' inputs, by role.

    Args:
        given: the columns that the user names, by role. A role without one gets the column of training, else a guess.

    Raises:
        UsageError: there is no such column, or it is of another role than the runs read.
    """
    examples = next(iter(source.splits.values()))
    roles, names = ROLES_OF[predictor.takes], dict(given)
    for role, name in names.items():
        if name is not None and name not in examples.column_names:
            raise unknown_name(f"column --{role}", name, examples.column_names)
        if name is not None and role not in roles:
            raise UsageError(
                f"the runs were trained over {predictor.takes}",
                expected=" and ".join(f"--{each}" for each in roles),
                received=f"--{role} {name}",
                remedy=f"leave --{role} out",
            )
    trained = [run.encoding["columns"] for run in predictor.runs.values()]
    for role in roles:
        present = [columns[role] for columns in trained if columns[role] in examples.column_names]
        names[role] = names.get(role) or next(iter(present), None)
    guessed = guess_columns(source, **names)
    found = {role: names[role] or getattr(guessed, role) for role in roles}
    for role, column in found.items():
        if column is None:
            raise UsageError(
                f"no column of {source.name} can be taken for what the runs were trained over: {predictor.takes}",
                expected=f"a column for --{role}",
                received=", ".join(examples.column_names),
                remedy=f"name it with --{role}",
            )
    return found


def has_labels(examples: Examples, columns: Mapping[str, Container[str] | None]) -> bool:
    """Whether an example has a label in one of these columns, and one of the column's classes unless they are None; no
    more examples are read than it takes to know.
    """
    names = [name for name in columns if name in examples.column_names]
    read = ((name, batch.column(name)) for batch in examples.batches() for name in names)
    return bool(names) and any(is_known(value, columns[name]) for name, column in read for value in column.to_pylist())


def source_examples(
    source: Source, split: str, roles: Mapping[str, str], runs: Iterable[tuple[TrainedRun, str]]
) -> tuple[LabelledExamples, list[str]]:
    """A split of a source as examples with labels, tags in BIO2, and notes on what was changed.

    Args:
        roles: as :func:`input_columns` gives them. runs: heads with their columns of labels.
    """
    examples = source.splits[split]
    tags = [column for run, column in runs if run.of_words and column in examples.column_names]
    chosen = Columns(**roles, tags=tuple(dict.fromkeys(tags)))  # type: ignore[arg-type]
    ready, notes = prepared(Source(source.name, {split: examples}), chosen)
    frame = ready.splits[split].head().to_pandas(ignore_metadata=True)  # as a store has the examples
    return LabelledExamples(source.name, split, frame, roles), notes


def live_answers(predictor: Predictor, data: LabelledExamples) -> tuple[dict[str, list[Scored]], int]:
    """Each head's answers about all examples, by the head's name, and the number of examples that were cut for the
    encoder.
    """
    # In blocks, because a prediction has a probability of every class.
    columns: list[list[Any]] = [
        [list(value) if role == "tokens" else str(value) for value in data.frame[name]]
        for role, name in data.roles.items()
    ]
    found, cut = {name: list[Scored]() for name in predictor.runs}, 0
    for at in range(0, len(data.frame), BLOCK):
        predictions = predictor.predict(*(column[at : at + BLOCK] for column in columns), start=at)
        for name, answers in found.items():
            answers += [_scored(each.heads[name]) for each in predictions]
        cut += sum(each.cut for each in predictions)
    return found, cut


def _scored(answer: Answer) -> Scored:
    """An answer in the form that is scored, and the probability of a label; None for other answers."""
    if isinstance(answer, Label):
        return answer.label, None if answer.probabilities is None else answer.probabilities[answer.label]
    if isinstance(answer, Number):
        return answer.value, None
    return (answer.labels if isinstance(answer, Labels) else answer.tags), None
