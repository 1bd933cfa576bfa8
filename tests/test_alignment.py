"""Rows laid over sub-tokens: by hand, and against a loop over words."""

from __future__ import annotations

import numpy as np
import pytest

from fusionkit.alignment import Rows, lay_rows
from fusionkit.ragged import offsets_of
from fusionkit.specs import ROWS

# Two examples: [CLS] a a b [SEP], and [CLS] c [SEP] whose words 1 and 2 of three have no sub-token.
OFFSETS = np.array([0, 5, 8])
WORDS = np.array([-1, 0, 0, 1, -1, -1, 0, -1], dtype=np.int32)
COUNTS = np.array([2, 3])

BY_HAND = {
    "tokens": ([0, 5, 8], [(i, i + 1) for i in range(8)]),
    "words": ([0, 2, 5], [(1, 2), (3, 4), (6, 7), None, None]),
    "words-mean": ([0, 2, 5], [(1, 3), (3, 4), (6, 7), None, None]),
    "cls": ([0, 1, 2], [(0, 1), (5, 6)]),
    "last": ([0, 1, 2], [(4, 5), (7, 8)]),
    "mean": ([0, 1, 2], [(0, 5), (5, 8)]),
}


def spans(rows: Rows) -> list[tuple[int, int] | None]:
    """Each row's sub-tokens, None for a masked row."""
    assert rows.mask.tolist() == [first < last for first, last in zip(rows.first, rows.last, strict=True)]
    pairs = zip(rows.first.tolist(), rows.last.tolist(), rows.mask, strict=True)
    return [(first, last) if there else None for first, last, there in pairs]


@pytest.mark.parametrize("kind", BY_HAND)
def test_rows_are_those_told_by_hand(kind: str) -> None:
    rows = lay_rows(kind, OFFSETS, WORDS, COUNTS)
    offsets, expected = BY_HAND[kind]
    assert rows.row_offsets.tolist() == offsets
    assert spans(rows) == expected


def test_every_kind_of_rows_was_seen() -> None:
    assert tuple(BY_HAND) == ROWS


def random_tokens(seed: int) -> tuple[list[list[int]], list[int]]:
    """Word indices of some examples' sub-tokens, with gaps, cuts and empty examples; and their words' counts."""
    rng = np.random.default_rng(seed)
    examples, counts = [], []
    for _ in range(30):
        count = int(rng.integers(0, 6))
        pieces = [word for word in range(count) for _ in range(rng.integers(0, 4))]
        around = [[-1], [-1]] if rng.random() < 0.8 else [[], []]  # decoders add none
        examples.append(around[0] + pieces[: int(rng.integers(0, len(pieces) + 1))] + around[1])
        counts.append(count)
    return examples, counts


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["words", "words-mean"])
def test_words_are_those_that_a_loop_finds(kind: str, seed: int) -> None:
    examples, counts = random_tokens(seed)
    expected: list[tuple[int, int] | None] = []
    start = 0
    for words, count in zip(examples, counts, strict=True):
        for word in range(count):
            at = [start + i for i, w in enumerate(words) if w == word]
            expected.append((at[0], at[0] + 1 if kind == "words" else at[-1] + 1) if at else None)
        start += len(words)
    offsets = offsets_of(np.array([len(words) for words in examples]))
    index = np.array([word for words in examples for word in words], dtype=np.int32)
    rows = lay_rows(kind, offsets, index, np.array(counts))
    assert spans(rows) == expected
    assert rows.row_offsets.tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)]


def test_an_example_without_sub_tokens_has_one_masked_row() -> None:
    offsets = np.array([0, 0, 2, 2])
    for kind, span in (("cls", (0, 1)), ("last", (1, 2)), ("mean", (0, 2))):
        assert spans(lay_rows(kind, offsets, np.array([0, 1], dtype=np.int32), None)) == [None, span, None]


def test_no_examples_give_no_rows() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    for kind in BY_HAND:
        rows = lay_rows(kind, np.zeros(1, dtype=np.int64), nothing, np.zeros(0, dtype=np.int64))
        assert (rows.row_offsets.tolist(), spans(rows)) == ([0], [])


@pytest.mark.parametrize("kind", ["words", "words-mean"])
def test_rows_of_words_need_their_number(kind: str) -> None:
    with pytest.raises(ValueError, match="number of words"):
        lay_rows(kind, OFFSETS, WORDS, None)
