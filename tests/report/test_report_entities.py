"""Kinds of mistakes of spans, against sentences that were judged by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionkit.evaluation.span_errors import KINDS, count_kinds, verdicts
from fusionkit.tags import spans_of


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds"),
    [
        ("B-a I-a O", "B-a I-a O", ["correct"]),
        ("B-a I-a O", "B-b I-b O", ["wrong type"]),
        ("B-a I-a O", "B-a O O", ["wrong boundary"]),
        ("B-a I-a O", "O B-a I-a", ["wrong boundary"]),
        ("B-a I-a O", "B-b O O", ["type and boundary"]),
        ("B-a O O", "O O O", ["missed"]),
        ("O O O", "O O B-a", ["spurious"]),
        ("B-a O O", "O O B-a", ["missed", "spurious"]),
        ("B-a I-a O", "B-a B-a O", ["wrong boundary", "spurious"]),  # one partner each: the second is left over
        ("B-a B-b O", "B-a I-a O", ["wrong boundary", "missed"]),
        ("B-a I-a B-b", "B-b I-b B-b", ["wrong type", "correct"]),
        ("O O O", "O O O", []),
    ],
)
def test_each_span_has_its_kind(gold: str, predicted: str, kinds: list[str]) -> None:
    assert [one.kind for one in verdicts(gold.split(), predicted.split())] == kinds


TAGS = st.lists(st.tuples(*[st.sampled_from(["O", "B-a", "I-a", "B-b", "I-b"])] * 2), min_size=1, max_size=12)


@given(st.lists(TAGS, max_size=4))
def test_every_span_is_counted_once(sentences: list[list[tuple[str, str]]]) -> None:
    pairs = [([one for one, _ in tags], [other for _, other in tags]) for tags in sentences]
    counts = count_kinds(pairs)
    total = {kind: sum(each[kind] for each in counts.values()) for kind in KINDS}
    gold = sum(len(spans_of(one)) for one, _ in pairs)
    predicted = sum(len(spans_of(other)) for _, other in pairs)
    correct = sum(len(set(spans_of(one)) & set(spans_of(other))) for one, other in pairs)
    assert sum(total.values()) - total["spurious"] == gold
    assert sum(total.values()) - total["missed"] == predicted
    assert total["correct"] == correct
