"""The answers of runs on their test splits, as comparisons over test examples need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fusionkit.errors import StoreError
from fusionkit.statistics.examples import SCORES, Score, pseudo_values
from fusionkit.statistics.intervals import Floats
from fusionkit.statistics.kept_answers import KeptAnswers, RunAnswers, ScoreTerm

Read = Callable[[str], Mapping[str, RunAnswers]]  # digest of a run → its answers, by the name of the test data
HELD = 1 << 28  # bytes of values that are kept in memory: a run has 28 KB on CoNLL-2003


class ScoredRun(NamedTuple):
    """A run on one test split: its digest, the data's name, the metric that counts, its recorded score, and a text that
    identifies its test store; one per task where these have stores of their own.
    """

    digest: str
    evaluated: str
    metric: str
    score: float
    stores: tuple[str, ...]


class OnTest(NamedTuple):
    """A test set of a run and what each of its examples adds to the score. A run has one; the mean of tasks over stores
    of their own has one per task.
    """

    examples: str  # a digest: runs with the same one answered the same examples
    values: Floats  # [E], fusionkit.statistics.examples.pseudo_values
    store: str  # test sets of one store have the same examples, even if their labels differ
    share: float  # of the score


class ExampleScores:
    """Reads answers, and keeps in memory what each example adds to a run's score, at most :data:`HELD` bytes.

    Args:
        read: gives a run's answers by its digest; an empty mapping for a run that was kept without answers.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._held: dict[ScoredRun, tuple[OnTest, ...]] = {}  # the run that was asked for last is the last
        self._bytes = 0

    def of(self, run: ScoredRun) -> tuple[OnTest, ...]:
        """The test sets of a run's score; empty where no answers are kept, or none for this score.

        Raises:
            StoreError: the answers give another score than the record has.
        """
        found = self._held.pop(run, None)
        if found is None:
            found = self._read_values(run)
            self._bytes += _bytes_of(found)
        self._held[run] = found
        while self._bytes > HELD:
            self._bytes -= _bytes_of(self._held.pop(next(iter(self._held))))
        return found

    def counts(self, runs: Sequence[ScoredRun]) -> tuple[Score, Floats] | None:
        """A score as a function of sums of counts, and the counts of runs on one test split, ``[runs, E, k]``; None
        where a run lacks answers or its answers have no counts for the metric. Errors are those of :meth:`of`.
        """
        return _counts([self._terms(run) for run in runs])

    def _read_values(self, run: ScoredRun) -> tuple[OnTest, ...]:
        terms, apart = self._terms(run), len(run.stores) > 1
        found = list[OnTest]()
        for part in [[term] for term in terms] if apart else [terms]:
            if (counted := _counts([part])) is None:
                return ()
            score, counts = counted
            task = part[0].task if apart else 0
            digest = "+".join(term.answers.examples for term in part)
            # Equal gold answers of two tasks are of different examples.
            name = f"{task} {digest}" if apart else digest
            share = len(part) / len(terms)
            found.append(OnTest(name, pseudo_values(score, counts[0]), run.stores[task], share))
        return tuple(found)

    def _terms(self, run: ScoredRun) -> list[ScoreTerm]:
        answers = self._read(run.digest).get(run.evaluated)
        if answers is None or not np.isfinite(run.score) or run.metric not in answers.scores():
            return []
        if answers.unlike({run.metric: run.score}):
            raise StoreError(
                f"the answers kept of the run {run.digest} are not those that were scored",
                expected=f"{run.metric} {run.score!r} on {run.evaluated}",
                received=repr(answers.scores().get(run.metric)),
                remedy="remove its answers.safetensors; `fusionkit evaluate RUN STORE --keep` makes it anew",
            )
        return answers.terms(run.metric)


def _bytes_of(sets: Sequence[OnTest]) -> int:
    return sum(each.values.nbytes for each in sets)


def _counts(terms: Sequence[Sequence[ScoreTerm]]) -> tuple[Score, Floats] | None:
    """:meth:`ExampleScores.counts` from the terms of each run's score."""
    if not all(terms):
        return None
    # Runs may have learned different classes: only over all of them together do their counts have the same columns.
    classes = [_classes([term.answers for term in alike]) for alike in zip(*terms, strict=True)]
    widths, found = list[int](), list[Floats]()
    for run in terms:
        counts = [term.answers.counts(term.metric, names) for term, names in zip(run, classes, strict=True)]
        parts = [part for part in counts if part is not None]
        if len(parts) < len(counts):
            return None
        widths = [part.shape[1] for part in parts]
        found.append(np.concatenate(parts, axis=1))
    return _mean_of([term.metric for term in terms[0]], widths), np.stack(found)


def _classes(parts: Sequence[KeptAnswers]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.classes))


def _mean_of(metrics: Sequence[str], widths: Sequence[int]) -> Score:
    """The mean of several scores, each computed from its own columns of the counts."""
    ends = np.cumsum(widths)

    def score(sums: Floats) -> Floats:
        parts = [
            SCORES[metric](sums[..., end - width : end])
            for metric, width, end in zip(metrics, widths, ends, strict=True)
        ]
        return parts[0] if len(parts) == 1 else np.mean(parts, axis=0)

    return score
