"""Where examples come from: the stored split and the index in it, kept through draws and joins of stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.ragged import IntArray
from fusionkit.store import Store


@dataclass(frozen=True)
class Origin:
    """The places of examples in stored splits.

    Attributes:
        splits: stores and names of their splits. part: int64 ``[examples]``, the index in ``splits`` of each example's
            split. number: int64 ``[examples]``, its index in that split.
    """

    splits: tuple[tuple[Store, str], ...]
    part: IntArray
    number: IntArray

    @classmethod
    def of(cls, store: Store, split: str, examples: IntArray) -> Origin:
        """Examples of one split."""
        return cls(((store, split),), np.zeros(len(examples), dtype=np.int64), examples)

    def take(self, examples: IntArray) -> Origin:
        """Only these examples, in the order given."""
        return Origin(self.splits, self.part[examples], self.number[examples])

    def texts(self) -> list[str]:
        """The text of each example: both texts of a pair joined by a line end, words joined by spaces."""
        found = [""] * len(self.part)
        for at, frame, columns in self._frames():
            if columns["tokens"]:
                told = [" ".join(map(str, words)) for words in frame[columns["tokens"]]]
            else:
                parts = [frame[columns[role]].fillna("").astype(str) for role in ("text", "pair") if columns[role]]
                told = ["\n".join(each) for each in zip(*parts, strict=True)]
            for place, text in zip(at, told, strict=True):
                found[place] = text
        return found

    def words(self) -> list[list[str]]:
        """The words of each example; only for stores with a column of words."""
        found = [list[str]() for _ in self.part]
        for at, frame, columns in self._frames():
            for place, words in zip(at, frame[columns["tokens"]], strict=True):
                found[place] = [*map(str, words)]
        return found

    def _frames(self) -> Iterator[tuple[IntArray, pd.DataFrame, dict[str, Any]]]:
        """For each split: the indices of its examples, their rows of the stored table, and its columns by role."""
        for k, (store, split) in enumerate(self.splits):
            at = np.flatnonzero(self.part == k)
            yield at, store[split].examples.iloc[self.number[at]], store.manifest["columns"]


def joined(origins: Sequence[Origin | None]) -> Origin | None:
    """The origins concatenated; None if any is unknown."""
    known = [origin for origin in origins if origin is not None]
    if len(known) < len(origins):
        return None
    starts = np.cumsum([0, *(len(origin.splits) for origin in known)])
    return Origin(
        tuple(split for origin in known for split in origin.splits),
        np.concatenate([origin.part + start for origin, start in zip(known, starts, strict=False)]),
        np.concatenate([origin.number for origin in known]),
    )
