"""The text of stored rows: words, sub-tokens as the tokenizer writes them, or whole texts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fusionkit.errors import FusionkitError
from fusionkit.ragged import IntArray
from fusionkit.specs import PER_SEQUENCE
from fusionkit.store import Store

WHOLE = "the whole text"


class Texts:
    """The texts of the rows of one split."""

    def __init__(self, store: Store, split: str) -> None:
        self._store, self._split = store, store[split]
        self._columns = store.manifest["columns"]

    def words_of(self, row: int, count: int) -> list[str]:
        """The first ``count`` words of the sequence that a row belongs to: those that have tags."""
        return list(self._sequences[self._sequence(row)])[:count]

    def rows(self, rows: IntArray) -> list[str]:
        """The texts of some rows."""
        if self._store.rows in PER_SEQUENCE:
            return [WHOLE for _ in rows]
        if self._store.rows == "tokens":
            return [self._pieces[row] for row in rows]
        offsets = self._split.row_offsets
        found = []
        for row in rows.tolist():
            sequence = self._sequence(row)
            found.append(str(self._sequences[sequence][row - int(offsets[sequence])]))
        return found

    def whole(self, rows: IntArray) -> str:
        """The text that some rows belong to; both texts if they belong to two."""
        sequences = dict.fromkeys(self._sequence(row) for row in rows.tolist())
        texts = [self._sequences[one] for one in sequences]
        return " ⁄ ".join(" ".join(text) if not isinstance(text, str) else text for text in texts)

    def _sequence(self, row: int) -> int:
        return int(np.searchsorted(self._split.row_offsets, row, side="right")) - 1

    @cached_property
    def _sequences(self) -> list[Any]:
        """The words or the text of each sequence; for a pair that is one sequence both texts, with a slash between."""
        frame = self._split.examples
        if self._columns["tokens"]:
            return [[str(word) for word in words] for words in frame[self._columns["tokens"]]]
        first: list[Any] = frame[self._columns["text"]].astype(str).tolist()
        if not self._columns["pair"]:
            return first
        second = frame[self._columns["pair"]].astype(str).tolist()
        if self._split.sides == 1:
            return [f"{one} ⁄ {other}" for one, other in zip(first, second, strict=True)]
        found = [""] * self._split.sequences
        for (left, right), one, other in zip(self._split.pairs.tolist(), first, second, strict=True):
            found[left], found[right] = one, other
        return found

    @cached_property
    def _pieces(self) -> list[str]:
        # Imported here: the tokenizer's library takes seconds to import, and most reports show words.
        from fusionkit.encoder.loading import tokenizer_of

        ids = self._split.token_ids.tolist()
        try:
            tokenizer = tokenizer_of(self._store.manifest["encoder"]["name"])
        except FusionkitError:
            return ["·"] * len(ids)  # the encoder is not on this machine
        known = dict(zip(distinct := sorted(set(ids)), tokenizer.convert_ids_to_tokens(distinct), strict=True))
        return [str(known[each]) for each in ids]
