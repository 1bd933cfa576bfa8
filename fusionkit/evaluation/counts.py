"""Counts of a head's answers by class or entity type, and confusions between these.

    precision = r_k / p_k      recall = r_k / t_k      F1 = 2 r_k / (t_k + p_k)

Symbols, of class k: ``t_k`` how often it is gold, ``p_k`` how often it is predicted, ``r_k`` how often both. What is
counted is an example's label, a word's tag, one of an example's labels, or for span tags a whole entity, which is right
if its first word, its last word and its type are (Tjong Kim Sang and De Meulder 2003). 0 where a denominator is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusionkit.evaluation.span_errors import Span, verdicts
from fusionkit.statistics.kept_answers import CLASS, NUMBER, SEVERAL, SPANS, TAGS
from fusionkit.tags import span_types, spans_of

NOTHING = "(nothing)"  # stands for the missing side of a missed or a spurious entity
REST = "(others)"


@dataclass(frozen=True)
class ClassCounts:
    """The counts of one class, or for span tags of one entity type.

    Attributes:
        told, predicted, right: counts; ``told`` is of gold answers. known: False for a class that train lacked, which
            cannot be predicted.
    """

    name: str
    told: int
    predicted: int
    right: int
    known: bool

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.told if self.told else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.told + self.predicted) if self.right else 0.0


def class_counts(kind: str, gold: Sequence[Any], predicted: Sequence[Any], labels: Iterable[str]) -> list[ClassCounts]:
    """The counts of each class, the most frequent gold class first; none for numbers.

    Args:
        kind: as :func:`fusionkit.statistics.kept_answers.kind_of` gives it. gold, predicted: one answer per example.
        labels: those of train.
    """
    if kind == NUMBER:
        return []
    known = span_types(labels) if kind == SPANS else set(labels)
    told, found, right = Counter[str](), Counter[str](), Counter[str]()
    for one, other in zip(gold, predicted, strict=True):
        ours, theirs = _things(kind, one), _things(kind, other)
        told.update(thing[0] for thing in ours)
        found.update(thing[0] for thing in theirs)
        right.update(thing[0] for thing in ours & theirs)
    order = sorted(known | {*told}, key=lambda name: (-told[name], name))
    return [ClassCounts(name, told[name], found[name], right[name], name in known) for name in order]


def _things(kind: str, answer: Any) -> set[tuple[Any, ...]]:
    """What is counted in one example: tuples of a class and, for tags and spans, its place."""
    if kind == SPANS:
        return set(spans_of(answer))
    if kind == TAGS:
        return {(tag, at) for at, tag in enumerate(answer)}
    return {(label,) for label in (answer if kind == SEVERAL else (answer,))}


def confusions(kind: str, gold: Sequence[Any], predicted: Sequence[Any]) -> Counter[tuple[str, str]]:
    """How often each class was predicted for each gold class; empty for several labels per example and for numbers.

    For span tags the classes are entity types. A gold entity is paired with a predicted one that shares a word with it
    (:func:`fusionkit.evaluation.span_errors.verdicts`); one without a partner is paired with :data:`NOTHING`.
    """
    pairs = Counter[tuple[str, str]]()
    if kind in (NUMBER, SEVERAL):
        return pairs
    for one, other in zip(gold, predicted, strict=True):
        if kind == CLASS:
            pairs[one, other] += 1
        elif kind == TAGS:
            pairs.update(zip(one, other, strict=True))
        else:
            for found in verdicts(one, other):
                pairs[_type_of(found.gold), _type_of(found.predicted)] += 1
    return pairs


def _type_of(span: Span | None) -> str:
    return NOTHING if span is None else span[0]


def most_frequent(pairs: Counter[tuple[str, str]], most: int) -> tuple[list[str], Counter[tuple[str, str]]]:
    """The most frequent gold classes, at most ``most`` of them, and the counts between them. The other classes are
    merged into :data:`REST`, which is the last; :data:`NOTHING` is no class and stays.
    """
    frequency = Counter[str]({name: 0 for pair in pairs for name in pair})
    for (gold, _), count in pairs.items():
        frequency[gold] += count
    order = sorted(frequency, key=lambda name: (name == NOTHING, -frequency[name], name))
    if len(order) <= most:
        return order, pairs
    kept = [*order[: most - 2], NOTHING] if NOTHING in frequency else order[: most - 1]
    counts = Counter[tuple[str, str]]()
    for (gold, said), count in pairs.items():
        counts[gold if gold in kept else REST, said if said in kept else REST] += count
    return [*kept, REST], counts
