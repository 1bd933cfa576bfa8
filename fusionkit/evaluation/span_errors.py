"""The kinds of mistakes that a tagger makes with spans.

Every gold span and every predicted span is counted once. The kinds are tried in this order, and a gold span is paired
with the leftmost predicted span that fits and has no partner yet:

    correct             same words, same type
    wrong type          same words, another type
    wrong boundary      words in common, same type
    type and boundary   words in common, another type
    missed              gold alone
    spurious            predicted alone

So the number of gold spans is the sum of the first five kinds, that of predicted spans the sum of all but ``missed``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusionkit.tags import spans_of

Span = tuple[str, int, int]
CORRECT = "correct"
MISTAKES = ("wrong type", "wrong boundary", "type and boundary", "missed", "spurious")
KINDS = (CORRECT, *MISTAKES)


@dataclass(frozen=True)
class Verdict:
    """A pair of spans, or a span without a partner. Attributes: gold, predicted: type, first word, one past the last
    word.
    """

    kind: str
    gold: Span | None
    predicted: Span | None

    @property
    def span(self) -> Span:
        """The gold span, or the predicted one where there is no gold span."""
        span = self.gold or self.predicted
        assert span is not None
        return span


def verdicts(gold: Sequence[str], predicted: Sequence[str]) -> list[Verdict]:
    """The verdict on every span of one sentence, from left to right, from the gold and the predicted tags."""
    left, right, found = spans_of(gold), spans_of(predicted), []
    tests: dict[str, Callable[[Span, Span], bool]] = {
        CORRECT: lambda one, other: one == other,
        "wrong type": lambda one, other: one[1:] == other[1:],
        "wrong boundary": lambda one, other: _meet(one, other) and one[0] == other[0],
        "type and boundary": _meet,
    }
    for kind, fits in tests.items():
        for one in list(left):
            partner = next((other for other in right if fits(one, other)), None)
            if partner is not None:
                found.append(Verdict(kind, one, partner))
                left.remove(one)
                right.remove(partner)
    found += [Verdict("missed", one, None) for one in left] + [Verdict("spurious", None, other) for other in right]
    return sorted(found, key=lambda verdict: verdict.span[1:])


def count_kinds(sentences: Iterable[tuple[Sequence[str], Sequence[str]]]) -> dict[str, dict[str, int]]:
    """The number of spans per kind, by entity type. A pair counts by its gold type, a spurious span by its own."""
    counts: Counter[tuple[str, str]] = Counter()
    for gold, predicted in sentences:
        for verdict in verdicts(gold, predicted):
            counts[verdict.span[0], verdict.kind] += 1
    types = sorted({kind for kind, _ in counts})
    return {name: {kind: counts[name, kind] for kind in KINDS} for name in types}


def _meet(one: Span, other: Span) -> bool:
    return one[1] < other[2] and other[1] < one[2]
