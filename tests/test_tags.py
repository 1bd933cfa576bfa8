"""Span tags, against span readers written from the schemes' definitions."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from fusionkit.sources.prepared import TagColumn
from fusionkit.tags import are_span_tags, is_span_tag, other_scheme, spans_of, to_bio2

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


def test_to_bio2_changes_exactly_what_is_no_bio2() -> None:
    marks = {"O": "o", "B-a": "A", "I-a": "a", "B-ab": "B", "I-ab": "b"}
    accepted = 0
    for tags in SEQUENCES:
        valid = re.fullmatch("(o|Aa*|Bb*)*", "".join(marks[tag] for tag in tags)) is not None
        assert (to_bio2(tags) == list(tags)) == valid, tags
        accepted += valid
    assert 0 < accepted < len(SEQUENCES)


def test_a_column_of_tags_is_changed_as_its_sequences_are() -> None:
    rows = [*map(list, product((*ALPHABET, "x", "I-"), repeat=3)), *map(list, SEQUENCES)]
    for column in (pa.array(rows, pa.list_(pa.string())), pa.array(rows, pa.large_list(pa.string())).slice(7, 400)):
        tags = TagColumn.of(column)
        expected = [to_bio2(row) for row in column.to_pylist()]
        assert tags.in_bio2().to_pylist() == expected
        opened = np.add.reduceat(np.append(tags.opened_inside(), False), tags.offsets[:-1]) > 0
        lengths = np.diff(tags.offsets)
        changed = [row != fixed for row, fixed in zip(column.to_pylist(), expected, strict=True)]
        assert (opened & (lengths > 0)).tolist() == changed


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
    ("tags", "why"),
    [
        (["O", "B-PER", "I-PER", "b-PER"], "b-PER is no BIO tag"),
        (["O", "B-x", "I-x", "", "B_y"], "an empty tag, B_y are no BIO tags"),
        (["o", "b-x", "i-x"], "b-x, i-x, o are no BIO tags"),
        (["O", "B-x", "I-x", "E-x", "S-x", "E-y", "S-y"], "they are BIOES (E-x, E-y, S-x and 1 more), not BIO"),
        (["O", "S-x", "S-y"], "they are BIOES (S-x, S-y), not BIO"),
        (["O", "B-x", "L-x", "U-x"], "they are BILOU (L-x, U-x), not BIO"),
        (["O", "B-x", "E-x", "U-x"], "E-x, U-x are no BIO tags"),
    ],
)
def test_tags_that_look_like_spans_of_another_scheme_are_named(tags: list[str], why: str) -> None:
    assert other_scheme(tags) == why


@pytest.mark.parametrize(
    "tags",
    [["O", "B-x", "I-x"], ["O"], ["O", "o"], [], ["NOUN", "VERB", "O"], ["B-x", "NN"], ["O", "B-x", "NN", "VB"]],
)
def test_spans_and_tags_of_words_are_no_other_scheme(tags: list[str]) -> None:
    assert other_scheme(tags) is None


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
