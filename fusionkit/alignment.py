"""Words and sub-tokens: which stored row stands for which sub-tokens.

Sub-tokens carry the index of their word, -1 for special tokens. A word with no sub-token (the tokenizer
gave none, or the maximum length cut it) keeps its row; the row is masked and holds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionkit.ragged import IntArray, offsets_of
from fusionkit.specs import MASKED, PER_SEQUENCE


@dataclass(frozen=True)
class Rows:
    """The rows of some examples and the sub-tokens each is made of.

    Attributes:
        row_offsets: int64 ``[examples + 1]``.
        first, last: int64 ``[rows]``: a row is the mean of sub-tokens ``first:last`` (often just one), numbered from
            the first sub-token of the first example; an empty span is a masked row.
    """

    row_offsets: IntArray
    first: IntArray
    last: IntArray

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool ``[rows]``: False for masked rows."""
        return self.first < self.last


def lay_rows(
    kind: str,
    token_offsets: IntArray,
    word_index: NDArray[np.int32],
    word_counts: IntArray | None,
    masked: NDArray[np.bool_] | None = None,
) -> Rows:
    """The rows of some examples, for one kind of rows.

    Args:
        kind: ``tokens``, ``words``, ``words-mean``, ``cls``, ``last``, ``mean`` or ``masked-tokens``.
        token_offsets: int64 ``[examples + 1]`` into the sub-tokens.
        word_index: int32 ``[tokens]``: the word each sub-token belongs to, -1 for special tokens.
        word_counts: int64 ``[examples]``: the number of words of each example; only needed for ``words`` kinds.
        masked: bool ``[tokens]``, the sub-tokens that were masked; only needed for ``masked-tokens``.
    """
    starts, ends = token_offsets[:-1], token_offsets[1:]
    if kind == "tokens":
        at = np.arange(token_offsets[-1], dtype=np.int64)
        return Rows(token_offsets, at, at + 1)
    if kind in PER_SEQUENCE:
        # A decoder's tokenizer adds nothing to an empty text: no sub-token, a masked row.
        first = np.maximum(ends - 1, starts) if kind == "last" else starts
        last = np.minimum(starts + 1, ends) if kind == "cls" else ends
        return Rows(np.arange(len(starts) + 1, dtype=np.int64), first, last)
    if kind == MASKED:
        if masked is None:
            raise ValueError("rows of masked-tokens need to know which sub-tokens were masked")
        at = np.flatnonzero(masked)
        return Rows(np.searchsorted(at, token_offsets).astype(np.int64), at, at + 1)
    if word_counts is None:
        raise ValueError("rows of words need the number of words of each example")
    row_offsets = offsets_of(word_counts)
    first = np.zeros(row_offsets[-1], dtype=np.int64)
    last = np.zeros(row_offsets[-1], dtype=np.int64)
    tokens = np.flatnonzero(word_index >= 0)
    example = np.searchsorted(token_offsets, tokens, side="right") - 1
    row = row_offsets[example] + word_index[tokens]
    # Sub-tokens come in order, so the last write of the reversed order is a row's first sub-token.
    first[row[::-1]] = tokens[::-1]
    last[row] = first[row] + 1 if kind == "words" else tokens + 1
    return Rows(row_offsets, first, last)
