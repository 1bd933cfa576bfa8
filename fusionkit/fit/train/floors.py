"""Floors: answers without an encoder, which every head must beat.

    majority    the most frequent class of the draw; for numbers their mean; for tags the most frequent tag of each word
                type, and for a word that the draw lacks the most frequent tag of all
    tfidf       logistic regression (for numbers ridge regression) over counts of words and pairs of words,
                (1 + ln n) · (ln((1 + N) / (1 + d)) + 1), scaled to vectors of length 1

Symbols: ``n`` how often an example has a word or pair, ``d`` how many of the N examples of the draw have it.
The strength of the regression is the one of :data:`STRENGTHS` that is best on validation, as for a head's epoch.
Source: scikit-learn's ``TfidfVectorizer``, ``LogisticRegression`` and ``Ridge``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.metrics import is_better
from fusionkit.names import FLOORS
from fusionkit.statistics.kept_answers import answers_of
from fusionkit.tasks import Task

Answers = list[Any]
Answering = Callable[[TaskSplit], Answers]
MAJORITY, TFIDF = FLOORS
STRENGTHS = (1.0, 10.0, 100.0)  # C of the logistic regression, 1 / alpha of ridge
STEPS = 1000  # of the regression's solver at most


@dataclass(frozen=True)
class Floor:
    """A fitted floor. Attributes: answer: a split → one answer per example. parameters: how many numbers were learned.
    told: what was chosen.
    """

    answer: Answering
    parameters: int
    told: dict[str, float]


def refusal(name: str, task: Task | None) -> str | None:
    """Why a task has no such floor; None where it has one. ``task``: None for several tasks in one run."""
    if task is None:
        return "several tasks of one run have none: fit each task by itself"
    if task.unit == "row":
        return "masked language modelling has none: compare with the fusion last"
    if task.several:
        return "the most frequent set of labels is mostly the empty one: compare with a head of --shots 1"
    if task.unit == "word" and name == TFIDF:
        return "counts of words tell no tag of one word: choose majority, the tag of each word type"
    return None


def learn(name: str, data: TaskData, train: TaskSplit) -> Floor:
    """A floor fitted on training examples; UsageError for a task that has none."""
    if reason := refusal(name, None if data.others else data.task):
        raise UsageError(f"the task {data.task.name} has no floor {name}: {reason}")
    return _majority(data, train) if name == MAJORITY else _tfidf(data, train)


def _majority(data: TaskData, train: TaskSplit) -> Floor:
    if data.task.numeric:
        mean = float(np.mean(train.gold))
        return Floor(lambda split: [mean] * len(split), 1, {})
    if data.task.unit == "word":
        return _majority_tags(train)
    most = _most_frequent(Counter(train.gold))
    return Floor(lambda split: [most] * len(split), 0, {})


def _majority_tags(train: TaskSplit) -> Floor:
    assert train.origin is not None  # tags come with words, which lie in stores
    by_word: dict[str, Counter[str]] = {}
    for words, tags in zip(train.origin.words(), train.gold, strict=True):
        for word, tag in zip(words, tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    usual = _most_frequent(Counter(chain.from_iterable(train.gold)))
    known = {word: _most_frequent(tags) for word, tags in by_word.items()}

    def answer(split: TaskSplit) -> Answers:
        assert split.origin is not None
        return [[known.get(word, usual) for word in words] for words in split.origin.words()]

    return Floor(answer, len(known), {})


def _most_frequent(counts: Counter[str]) -> str:
    # Of equally frequent ones the first by name: the order of examples must not matter.
    return min(counts, key=lambda name: (-counts[name], name))


def _tfidf(data: TaskData, train: TaskSplit) -> Floor:
    # Imported here: scikit-learn takes a second to import, and most sweeps ask for no such floor.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    def texts(split: TaskSplit) -> list[str]:
        assert split.origin is not None
        return split.origin.texts()

    if len({*train.gold}) < 2:  # a draw of one class: a regression needs two
        return _majority(data, train)
    counts = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    try:
        rows = counts.fit_transform(texts(train))  # [examples, n-grams], sparse
    except ValueError:  # no text of the draw has a word
        return _majority(data, train)
    chooser = data.validation
    watched = counts.transform(texts(chooser))
    best: tuple[float, float, Any] | None = None
    for strength in STRENGTHS:
        model = Ridge(alpha=1 / strength) if data.task.numeric else LogisticRegression(C=strength, max_iter=STEPS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a floor need not converge
            model.fit(rows, train.gold)
        answers = answers_of(data.task, chooser.gold, model.predict(watched).tolist(), data.labels)
        metric, value = next(iter(answers.scores().items()))
        if best is None or is_better(metric, value, best[1]):
            best = strength, value, model
    assert best is not None
    strength, _, chosen = best
    size = int(np.size(chosen.coef_) + np.size(chosen.intercept_))
    return Floor(lambda split: chosen.predict(counts.transform(texts(split))).tolist(), size, {"strength": strength})
