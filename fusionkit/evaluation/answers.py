"""Answers of trained heads about labelled examples, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionkit.errors import UsageError
from fusionkit.evaluation.counts import class_counts, confusions
from fusionkit.evaluation.span_errors import CORRECT, count_kinds, verdicts
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.names import id_column
from fusionkit.plural import counted, few
from fusionkit.printable import plain_text
from fusionkit.ragged import IntArray
from fusionkit.statistics.kept_answers import NUMBER, SPANS, KeptAnswers, RunAnswers, answers_of, kind_of, run_answers
from fusionkit.tasks import TASKS, Task
from fusionkit.tasks.label_column import Gold, LabelColumn

SHOWN = 4  # unknown labels in a message


@dataclass(frozen=True)
class LabelledExamples:
    """One split of examples, from a source or a store.

    Attributes:
        name: of the data. split: its name. frame: one row per example. roles: the columns with the inputs, by role:
            ``text``, ``pair`` and ``tokens``, as far as there are any. digest: of the store, if they are from one.
    """

    name: str
    split: str
    frame: pd.DataFrame
    roles: Mapping[str, str]
    digest: str | None = None

    @cached_property
    def inputs(self) -> list[str]:
        """The text of each example, words joined by spaces; for a pair both texts, with a bar between."""
        columns = [[plain_text(value) for value in self.frame[name]] for name in self.roles.values()]
        return [" | ".join(each) for each in zip(*columns, strict=True)]

    @cached_property
    def ids(self) -> list[str]:
        """The examples' ids, or their numbers."""
        column = id_column(self.frame.columns)
        return [str(one) for one in (range(len(self.frame)) if column is None else self.frame[column])]

    def gold_of(self, run: TrainedRun, column: str, among: NDArray[np.bool_] | None = None) -> Gold:
        """The labels in a column as a run's task reads them, and which examples have one, bool ``[examples]``; only
        those of ``among``, if it is given. Errors as for reading labels.
        """
        told = LabelColumn(self.frame, self.split, column, self.roles.get("tokens"), among, [])
        gold, present = TASKS[run.spec.task].read(told)
        return gold, present if among is None else present & among


@dataclass(frozen=True, eq=False)
class HeadAnswers:
    """One head's answers about the examples that are scored.

    Attributes:
        run: the head; one of the tasks of a run of several. data: what it was scored on. column: the column that the
            labels were read from.
        examples: numbers of the examples, ascending. gold, predicted: for each a label, a number, a list of tags or of
            labels. probabilities: of each predicted label, if the answers have them.
    """

    run: TrainedRun
    data: LabelledExamples
    column: str
    examples: IntArray
    gold: list[Any]
    predicted: list[Any]
    probabilities: list[float | None] | None = None

    @property
    def task(self) -> Task:
        return TASKS[self.run.spec.task]

    @property
    def title(self) -> str:
        """Its column; for a task over a store of its own with the task in front, ``sst2: label``."""
        return f"{self.run.name}: {self.column}" if self.run.apart else self.column

    @property
    def kind(self) -> str:
        """``spans``, ``tags``, ``class``, ``several`` labels or ``number``."""
        return kind_of(self.task, self.run.labels)

    @cached_property
    def kept(self) -> KeptAnswers:
        """The answers in the form in which they are kept beside a run."""
        return answers_of(self.task, self.gold, self.predicted, self.run.labels)

    @cached_property
    def scores(self) -> dict[str, float]:
        """The task's scores, its own metric first, from 0 to 1."""
        return self.kept.scores()

    @property
    def wrong(self) -> list[int]:
        """The indices of the answers that are not entirely right; for numbers all indices, the largest error first."""
        if self.kind == NUMBER:
            away = np.abs(np.subtract(self.predicted, self.gold))
            return [int(at) for at in np.argsort(-away, kind="stable")]
        return [int(at) for at in np.flatnonzero(~self.kept.right)]

    def notes(self) -> list[str]:
        """Notes for the user about labels that the head cannot predict.

        Raises:
            UsageError: it knows none of the labels.
        """
        if self.task.numeric:
            return []
        told = [one for gold in self.gold for one in self.task.classes(gold)]
        known = {*self.run.labels}
        unknown = sorted({*told} - known)
        # ``O`` is no evidence that the labels are the same: any data has words outside of entities.
        shared = {*told} & known - ({"O"} if self.kind == SPANS and {*told} != {"O"} else set())
        if told and not shared:
            raise UsageError(
                f"the head has learned none of the labels in column {self.column!r}",
                expected=f"labels such as {few(self.run.labels, SHOWN)}",
                received=few(unknown, SHOWN),
                remedy="name another column with --label, or give the classes their names in training",
            )
        if not unknown:
            return []
        count = sum(not known.issuperset(self.task.classes(gold)) for gold in self.gold)
        return [
            f"{self.column}: {counted(count, 'example')} of {len(self.gold):,} with a label that train lacks "
            f"({few(unknown, SHOWN)}): counted as errors"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        pairs = confusions(self.kind, self.gold, self.predicted)
        found: dict[str, Any] = {
            "label": self.run.spec.label,
            "column": self.column,
            **({"name": self.run.name, "data": self.data.name, "split": self.data.split} if self.run.apart else {}),
            "task": self.run.spec.task,
            "head": self.run.spec.head,
            "examples": len(self.gold),
            "wrong": None if self.kind == NUMBER else len(self.wrong),
            "scores": self.scores,
            "classes": [
                {
                    "name": each.name, "gold": each.told, "predicted": each.predicted, "right": each.right,
                    "precision": each.precision, "recall": each.recall, "f1": each.f1, "in_train": each.known,
                }
                for each in class_counts(self.kind, self.gold, self.predicted, self.run.labels)
            ],
            "confusion": [{"gold": a, "predicted": b, "count": count} for (a, b), count in sorted(pairs.items())],
        }  # fmt: skip
        if self.kind == SPANS:
            found["mistakes"] = count_kinds(zip(self.gold, self.predicted, strict=True))
        return found


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """A trained run scored on one split, or each of its tasks on a split of its own.

    Attributes:
        run: the run, as the first of its tasks. heads: by task, those with labels in the data. notes: messages for the
            user.
    """

    run: TrainedRun
    heads: Mapping[str, HeadAnswers]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def data(self) -> LabelledExamples:
        """The examples it was scored on; for tasks over stores of their own those of the first one."""
        return next(iter(self.heads.values())).data

    def beside(self, other: RunEvaluation) -> RunEvaluation:
        """This evaluation with other tasks of the run added; UsageError where two data sets serve one of the tasks."""
        if twice := [name for name in self.heads if name in other.heads]:
            raise UsageError(
                f"two data sets serve the task {twice[0]}",
                expected="one for each task",
                received=f"{self.heads[twice[0]].data.name}, {other.heads[twice[0]].data.name}",
                remedy="evaluate over each by itself",
            )
        run = self.run.of_parts({**self.run.parts, **other.run.parts})
        return RunEvaluation(run, {**self.heads, **other.heads}, [*self.notes, *other.notes])

    @cached_property
    def kept(self) -> RunAnswers:
        """The answers in the form in which they are kept beside a run."""
        return run_answers({name: head.kept for name, head in self.heads.items()}, self.run.apart)

    @cached_property
    def scores(self) -> dict[str, float]:
        """The scores of the run's task; for several tasks those of :func:`fusionkit.metrics.joint_means`."""
        return self.kept.scores()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON takes them."""
        spec = self.run.spec
        return {
            "run": self.run.digest,
            "folder": str(self.run.folder),
            "method": spec.method,
            "fusion": spec.fusion,
            "trained_on": self.run.data,
            "data": self.data.name,
            "split": self.data.split,
            "scores": self.scores,
            "heads": [head.to_dict() for head in self.heads.values()],
            "notes": list(self.notes),
        }


def mistakes_frame(evaluations: Iterable[RunEvaluation]) -> pd.DataFrame:
    """One row per wrong answer: run, fusion, column, split, the example's id and text, gold, predicted, probability.

    ``column`` is :attr:`HeadAnswers.title`. Tags are joined by spaces; for span tags ``mistakes`` names each wrong
    entity. A head that predicts numbers has a row for each example, the largest error first.
    """
    rows = []
    for each in evaluations:
        for head in each.heads.values():
            for at in head.wrong:
                example, likely = int(head.examples[at]), head.probabilities
                rows.append({
                    "run": head.run.digest,
                    "fusion": head.run.spec.fusion,
                    "column": head.title,
                    "split": head.data.split,
                    "id": head.data.ids[example],
                    "text": head.data.inputs[example],
                    "gold": plain_text(head.gold[at]),
                    "predicted": plain_text(head.predicted[at]),
                    "probability": None if likely is None else likely[at],
                    "mistakes": _mistakes(head, at) if head.kind == SPANS else None,
                })  # fmt: skip
    columns = ("run", "fusion", "column", "split", "id", "text", "gold", "predicted", "probability", "mistakes")
    return pd.DataFrame(rows, columns=list(columns))


def _mistakes(head: HeadAnswers, at: int) -> str:
    data = head.data
    words = [str(word) for word in data.frame[data.roles["tokens"]].iloc[int(head.examples[at])]]
    told = []
    for found in verdicts(head.gold[at], head.predicted[at]):
        if found.kind != CORRECT:
            sides = (f"{s[0]} [{' '.join(words[s[1] : s[2]])}]" for s in (found.gold, found.predicted) if s)
            told.append(f"{found.kind}: {' → '.join(sides)}")
    return "; ".join(told)
