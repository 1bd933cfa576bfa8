"""Span tags, against span readers written from the schemes' definitions."""

from __future__ import annotations

import re
from itertools import product

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from fusionkit.tags import are_span_tags, is_bio2, is_span_tag, spans_of, to_bio2

ALPHABET = ("O", "B-a", "I-a", "B-ab", "I-ab")
SEQUENCES = [tags for n in range(6) for tags in product(ALPHABET, repeat=n)]


def spans_iob1(tags: tuple[str, ...] | list[str]) -> list[tuple[int, int, str]]:
    """Spans by IOB1's definition: a maximal run of one type, cut before each B-."""
    spans: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        kind = tag[2:]
        if tag == "O":
            continue
        if tag[0] == "I" and spans and spans[-1][1] == i and spans[-1][2] == kind:
            spans[-1] = (spans[-1][0], i + 1, kind)
        else:
            spans.append((i, i + 1, kind))
    return spans


def spans_bio2(tags: list[str]) -> list[tuple[int, int, str]]:
    """Spans by BIO2's definition: a B- and the I- of its type behind it, found by a regular expression."""
    marks = {"O": "o", "B-a": "A", "I-a": "a", "B-ab": "B", "I-ab": "b"}
    text = "".join(marks[tag] for tag in tags)
    return [(m.start(), m.end(), "a" if m[0][0] == "A" else "ab") for m in re.finditer("Aa*|Bb*", text)]


def test_to_bio2_keeps_the_spans_of_every_short_sequence() -> None:
    for tags in SEQUENCES:
        assert spans_bio2(to_bio2(tags)) == spans_iob1(tags), tags
    assert len(SEQUENCES) == 1 + 5 + 25 + 125 + 625 + 3125


def test_is_bio2_accepts_exactly_the_regular_language_of_bio2() -> None:
    marks = {"O": "o", "B-a": "A", "I-a": "a", "B-ab": "B", "I-ab": "b"}
    accepted = 0
    for tags in SEQUENCES:
        valid = re.fullmatch("(o|Aa*|Bb*)*", "".join(marks[tag] for tag in tags)) is not None
        assert is_bio2(tags) == valid, tags
        accepted += valid
    assert 0 < accepted < len(SEQUENCES)


def test_to_bio2_leaves_bio2_as_it_is() -> None:
    tags = ["B-a", "I-a", "B-a", "O", "B-ab", "I-ab"]
    assert to_bio2(tags) == tags


def test_conll_2003_iob1_by_hand() -> None:
    iob1 = ["I-ORG", "O", "I-PER", "I-PER", "B-PER", "I-LOC", "O"]
    assert to_bio2(iob1) == ["B-ORG", "O", "B-PER", "I-PER", "B-PER", "B-LOC", "O"]


@pytest.mark.parametrize(
    ("tag", "is_span"),
    [
        ("O", True), ("B-x", True), ("I-x", True), ("B-from-place", True), ("B-", False), ("I-", False),
        ("E-x", False), ("S-x", False), ("o", False), ("", False), ("NN", False), ("B_x", False),
    ],
)  # fmt: skip
def test_span_tags_are_o_and_typed_b_and_i(tag: str, is_span: bool) -> None:
    assert is_span_tag(tag) is is_span


@pytest.mark.parametrize(
    ("tags", "are_spans"),
    [
        (["O", "I-x"], True), (["B-x"], True), (["O", "O"], False), ([], False), (["O", "NN"], False),
        (["B-x", "E-x"], False), (["B-x", "O", ""], False),
    ],
)  # fmt: skip
def test_a_column_holds_spans_where_all_are_span_tags_and_one_opens(tags: list[str], are_spans: bool) -> None:
    assert are_span_tags(tags) is are_spans


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ([], []),
        (["O", "O"], []),
        (["B-a", "I-a", "O", "B-b"], [("a", 0, 2), ("b", 3, 4)]),
        (["B-a", "B-a"], [("a", 0, 1), ("a", 1, 2)]),
        (["I-a", "I-a", "I-b"], [("a", 0, 2), ("b", 2, 3)]),  # never opened: conlleval opens a span there
        (["B-a", "I-b", "O", "I-b"], [("a", 0, 1), ("b", 1, 2), ("b", 3, 4)]),
    ],
)
def test_spans_are_those_that_conlleval_counts(tags: list[str], spans: list[tuple[str, int, int]]) -> None:
    assert spans_of(tags) == spans
    counted = get_entities(tags)  # seqeval's, its ends inclusive
    assert spans_of(tags) == [(kind, start, stop + 1) for kind, start, stop in counted]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["S-PER", "I-PER", "X"], [("PER", 1, 2)]),  # S- continues nothing, so the I- opens a span
        (["_", "", "B-", "I-", "o"], []),
        (["B-a", "X", "I-a"], [("a", 0, 1), ("a", 2, 3)]),
    ],
)
def test_tags_of_another_scheme_mark_no_span(tags: list[str], spans: list[tuple[str, int, int]]) -> None:
    assert spans_of(tags) == spans
