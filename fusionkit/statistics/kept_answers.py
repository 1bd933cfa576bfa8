"""A run's answers on a test split, reduced to what its scores need: from one bit to a few bytes per example.

    kind      arrays
    class     told, found: class numbers [E]
    tags      told, found: class numbers [words]; words: words of each sentence [E]
    spans     told, missed, spurious: numbers of entities in each sentence [E]; words, wrong: numbers of its words and
              of its wrong words [E], which a file of records lacks
    several   told, found: bool [E, classes]
    number    told, found: float64 [E]
    nats      nats: cross-entropy of each masked sub-token; hits: bool; words: masked sub-tokens of each text [E]
    hits      hits: bool [E]

``E`` is the number of test examples, ``told`` the gold answers, ``found`` the run's answers. Classes are numbered in
the order of their names, those that occur in the split's gold answers first.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusionkit.metrics import (
    class_scores,
    joint_means,
    label_set_scores,
    masked_scores,
    number_scores,
    positive_scores,
    span_counts,
    span_scores,
    split_score,
)
from fusionkit.statistics.intervals import Floats
from fusionkit.tags import are_span_tags

if TYPE_CHECKING:
    from fusionkit.tasks import Task  # loads torch

CLASS, TAGS, SPANS, SEVERAL, NUMBER, NATS, HITS = "class", "tags", "spans", "several", "number", "nats", "hits"
FRAME = "frame"  # a score of several tasks: the share of examples with all answers right
Array = NDArray[Any]
ROUNDING = 1e-12  # sums in another order differ in their last digits


@dataclass(frozen=True, eq=False)
class KeptAnswers:
    """One task's answers on a split. Attributes: kind, arrays: as above. classes: names. positive: of positive_f1."""

    kind: str
    arrays: Mapping[str, Array]
    classes: Sequence[str] = ()
    positive: str | None = None

    def __len__(self) -> int:
        """The number of examples."""
        return len(self.arrays["words" if self.kind in (TAGS, NATS) else next(iter(self.arrays))])

    @cached_property
    def examples(self) -> str:
        """A digest of the gold answers: runs with different digests answered different examples."""
        content = hashlib.sha256(f"{self.kind} {len(self)}".encode())
        if self.classes:
            content.update("\0".join(self.classes[: self._told_classes]).encode())
        for name in ("told", "words") if self.kind in (TAGS, NATS) else ("told",):
            if name in self.arrays:
                told = self.arrays[name][:, : self._told_classes] if self.kind == SEVERAL else self.arrays[name]
                content.update(np.ascontiguousarray(told, dtype=np.float64).tobytes())
        return content.hexdigest()[:16]

    @property
    def _told_classes(self) -> int:
        """The number of classes that occur in the gold answers: these come first."""
        if self.kind == SEVERAL:
            return int(self.arrays["told"].any(0).sum())
        told = self.arrays.get("told", np.empty(0))
        return int(told.max()) + 1 if self.kind in (CLASS, TAGS) and len(told) else 0

    def scores(self) -> dict[str, float]:
        """The scores of these answers, the task's own metric first."""
        held = self.arrays
        if self.kind in (CLASS, TAGS):
            told, found = held["told"].astype(np.int64), held["found"].astype(np.int64)
            scores, yes = class_scores(told, found), self.positive
            return scores if yes is None else scores | positive_scores(told, found, [*self.classes, yes].index(yes))
        if self.kind == SPANS:
            sums = {name: int(each.sum()) for name, each in self._spans.items()}
            scores = span_scores(sums["right"], sums["found"], sums["told"], sums["hits"] / max(sums["words"], 1))
            return scores if "words" in held else {name: scores[name] for name in ("f1", "precision", "recall")}
        if self.kind == SEVERAL:
            told, found = held["told"], held["found"]
            whole = int((told == found).all(1).sum())
            return label_set_scores((told & found).sum(0), told.sum(0), found.sum(0), whole, len(told))
        if self.kind == NUMBER:
            return number_scores(held["told"], held["found"])
        if self.kind == NATS:
            return masked_scores(held["nats"], held["hits"])
        return {"accuracy": int(held["hits"].sum()) / max(len(self), 1)}

    @property
    def right(self) -> Array:
        """Whether each example is all right, bool ``[E]``; for spans that is each word's tag. Not for numbers."""
        counts = self.counts("word_accuracy" if self.kind == SPANS else "accuracy", self.classes)
        assert counts is not None
        right: Array = counts[:, 0] == counts[:, 1]
        return right

    def counts(self, metric: str, classes: Sequence[str]) -> Floats | None:
        """Counts of each example, float64 ``[E, k]``, whose sums give a score
        (:data:`fusionkit.statistics.examples.SCORES`); None for a score that these answers do not have.

        Args:
            classes: class names in an order that several runs share; they include those of these answers.
        """
        held = self.arrays
        if self.kind in (CLASS, TAGS):
            return self._class_counts(metric, classes)
        if self.kind == SPANS:
            names = {
                "f1": ("right", "found", "told"), "precision": ("right", "found"), "recall": ("right", "told"),
                "word_accuracy": ("hits", "words"),
            }.get(metric)  # fmt: skip
            if names is None or ("words" in names and "words" not in held):
                return None
            return _columns(self._spans[name] for name in names)
        if self.kind == SEVERAL:
            return self._label_set_counts(metric, classes)
        if self.kind == NUMBER:
            return _moments(metric, held["told"], held["found"])
        if self.kind == NATS:
            summed = {"perplexity": "nats", "cross_entropy": "nats", "accuracy": "hits"}.get(metric)
            return None if summed is None else self._by_example(_columns((held[summed], np.ones(len(held[summed])))))
        return _columns((held["hits"], np.ones(len(self)))) if metric in ("accuracy", FRAME) else None

    @cached_property
    def _spans(self) -> dict[str, Array]:
        """Numbers for each sentence, int64 ``[E]``: right, found and gold entities, words and right words."""
        none = np.zeros(len(self), dtype=np.int64)  # a file of records lacks the words
        told, missed, spurious, words, wrong = (
            self.arrays.get(name, none).astype(np.int64) for name in ("told", "missed", "spurious", "words", "wrong")
        )
        right = told - missed
        return {"right": right, "found": right + spurious, "told": told, "words": words, "hits": words - wrong}

    def _class_counts(self, metric: str, classes: Sequence[str]) -> Floats | None:
        place = {name: number for number, name in enumerate(classes)}
        at = np.array([place[name] for name in self.classes], dtype=np.int64)
        told, found = at[self.arrays["told"]], at[self.arrays["found"]]
        right, ones = told == found, np.ones(len(told))
        if metric == "accuracy":
            counts = _columns((right, ones))
        elif metric == "micro_f1":  # with one label per example, as many are found as are told
            counts = _columns((right, ones, ones))
        elif metric == "positive_f1" and self.positive is not None:
            yes = place.get(self.positive, -1)
            counts = _columns(((told == yes) & right, found == yes, told == yes))
        elif metric in ("macro_f1", "matthews"):
            each = np.eye(len(classes))
            counts = np.concatenate([each[told] * right[:, None], each[told], each[found]], axis=1)  # [units, 3 K]
        else:
            return None
        return counts if self.kind == CLASS else self._by_example(counts)

    def _by_example(self, counts: Floats) -> Floats:
        """The sums of the counts of each example's words, ``[words, k]`` → ``[E, k]``."""
        until = np.concatenate([np.zeros((1, counts.shape[1])), counts.cumsum(0)])  # [words + 1, k]
        ends = self.arrays["words"].cumsum(dtype=np.int64)
        each_example: Floats = until[ends] - until[ends - self.arrays["words"]]
        return each_example

    def _label_set_counts(self, metric: str, classes: Sequence[str]) -> Floats | None:
        told, found = (np.zeros((len(self), len(classes)), dtype=bool) for _ in range(2))
        place = {name: number for number, name in enumerate(classes)}
        at = [place[name] for name in self.classes]
        told[:, at], found[:, at] = self.arrays["told"], self.arrays["found"]
        if metric == "micro_f1":
            return _columns(side.sum(1) for side in (told & found, found, told))
        if metric == "macro_f1":
            return np.concatenate([told & found, told, found], axis=1).astype(np.float64)
        return _columns(((told == found).all(1), np.ones(len(self)))) if metric == "accuracy" else None


class ScoreTerm(NamedTuple):
    """A term of a score: some answers, the metric that is computed of them, and the place of their task among all."""

    answers: KeptAnswers
    metric: str
    task: int = 0


@dataclass(frozen=True, eq=False)
class RunAnswers:
    """A run's answers on one test split, by task; the task of a run of one task is ``""``.

    Attributes: parts: the answers of each task. frame: for several tasks, none of them of numbers, whether all answers
    of an example are right.
    """

    parts: Mapping[str, KeptAnswers]
    frame: KeptAnswers | None = None

    def scores(self) -> dict[str, float]:
        """The scores of these answers; for several tasks those of :func:`fusionkit.metrics.joint_means`."""
        scores = {name: part.scores() for name, part in self.parts.items()}
        if len(scores) == 1:
            return next(iter(scores.values()))
        return joint_means(scores, None if self.frame is None else self.frame.scores()["accuracy"])

    def unlike(self, recorded: Mapping[str, float]) -> str | None:
        """The name of the first recorded score that these answers do not give, up to rounding; None if all agree."""
        own = self.scores()
        return next((name for name, value in recorded.items() if not _equal(own.get(name), value)), None)

    def terms(self, metric: str) -> list[ScoreTerm]:
        """The terms whose mean is the score ``metric``; empty for a score that these answers do not have."""
        if len(self.parts) == 1:
            return [ScoreTerm(next(iter(self.parts.values())), metric)]
        if metric == "mean":
            return [ScoreTerm(part, next(iter(part.scores())), at) for at, part in enumerate(self.parts.values())]
        if metric == FRAME:
            return [] if self.frame is None else [ScoreTerm(self.frame, FRAME)]
        task, own = split_score(metric, self.parts)
        return [] if task is None else [ScoreTerm(self.parts[task], own, [*self.parts].index(task))]


def _equal(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def kind_of(task: Task, labels: Iterable[str]) -> str:
    """The kind of a task's answers; ``labels`` are those of train."""
    if task.numeric or task.several:
        return NUMBER if task.numeric else SEVERAL
    if task.unit == "word":
        return SPANS if are_span_tags(labels) else TAGS
    return NATS if task.unit == "row" else CLASS


def answers_of(task: Task, gold: Sequence[Any], found: Sequence[Any], labels: Sequence[str]) -> KeptAnswers:
    """The answers of a task from gold and predicted labels, one per example: a label, a list of tags, a list of labels
    or a number. For a text with masked sub-tokens they are lists: their ids, and for each of them the cross-entropy of
    its id in nats with the likeliest id.

    Args:
        labels: those of train. They alone decide which scores there are, so all splits have the same ones.
    """
    kind = kind_of(task, labels)
    if kind == NUMBER:
        return KeptAnswers(NUMBER, {"told": np.array(gold, np.float64), "found": np.array(found, np.float64)})
    if kind == SPANS:
        return span_answers(*span_counts(gold, found))
    if kind == SEVERAL:
        return _label_sets(gold, found, labels)
    of_words = kind in (TAGS, NATS)
    lists = [list(itertools.chain.from_iterable(side)) if of_words else list(side) for side in (gold, found)]
    words = {"words": small(np.array([len(each) for each in gold], dtype=np.int64))} if of_words else {}
    if kind == NATS:
        nats, best = np.array(lists[1], dtype=np.float64).reshape(-1, 2).T
        return KeptAnswers(NATS, {"nats": nats, "hits": best == np.array(lists[0]), **words})
    classes = ordered_classes(lists[0], [*labels, *lists[1]])
    number = {name: k for k, name in enumerate(classes)}
    arrays: dict[str, Array] = {
        name: small(np.array([number[each] for each in side], dtype=np.int64))
        for name, side in zip(("told", "found"), lists, strict=True)
    }
    return KeptAnswers(kind, arrays | words, classes, positive_of(labels))


def run_answers(parts: Mapping[str, KeptAnswers], apart: bool = False) -> RunAnswers:
    """A run's answers from those of its tasks; ``apart``: each task has examples of its own, so there is no frame."""
    if apart or len(parts) < 2 or any(part.kind == NUMBER for part in parts.values()):
        return RunAnswers(parts)
    hits = np.logical_and.reduce([part.right for part in parts.values()])
    return RunAnswers(parts, KeptAnswers(HITS, {"hits": hits}))


def positive_of(labels: Sequence[str]) -> str | None:
    """The positive one of two labels: the second, but the first if the second negates it. None of more labels."""
    if len(labels) != 2:
        return None
    negated = re.fullmatch(rf"no[nt]?[ _-]?{re.escape(labels[0])}", labels[1], re.IGNORECASE)
    return labels[0 if negated else 1]


def ordered_classes(told: Iterable[str], others: Iterable[str]) -> list[str]:
    """Class names: those in ``told``, sorted, then the others, sorted."""
    first = sorted(set(told))
    return [*first, *sorted(set(others) - set(first))]


def span_answers(right: Array, found: Array, told: Array, hits: Array, words: Array) -> KeptAnswers:
    """The answers of a tagger of spans from counts ``[E]``."""
    # Numbers of mistakes are mostly 0, so they compress well.
    arrays = {"told": told, "missed": told - right, "spurious": found - right, "words": words, "wrong": words - hits}
    return KeptAnswers(SPANS, {name: small(each) for name, each in arrays.items()})


def _label_sets(gold: Sequence[Any], found: Sequence[Any], labels: Sequence[str]) -> KeptAnswers:
    classes = ordered_classes(itertools.chain.from_iterable(gold), labels)
    number = {name: k for k, name in enumerate(classes)}
    told, said = (np.zeros((len(gold), len(classes)), dtype=bool) for _ in range(2))
    for matrix, side in ((told, gold), (said, found)):
        for example, names in enumerate(side):
            matrix[example, [number[name] for name in names]] = True
    return KeptAnswers(SEVERAL, {"told": told, "found": said}, classes)


def small(numbers: Array) -> Array:
    """Whole numbers, none negative, in the smallest integer type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _columns(arrays: Iterable[Array]) -> Floats:
    return np.stack([np.asarray(each, dtype=np.float64) for each in arrays], axis=-1)


def _moments(metric: str, told: Array, found: Array) -> Floats | None:
    if metric not in ("pearson", "spearman"):
        return None
    if metric == "spearman":
        from scipy import stats  # takes a second to import, and only tasks of numbers need it

        told, found = stats.rankdata(told), stats.rankdata(found)
    # Centred, because squares of large numbers would lose digits.
    x, y = (side - side.mean() for side in (np.asarray(told, np.float64), np.asarray(found, np.float64)))
    return _columns((np.ones(len(x)), x, y, x * x, y * y, x * y))
