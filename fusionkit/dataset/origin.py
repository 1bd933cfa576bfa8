"""Where examples come from: the stored split and the place in it, through draws and joined stores."""

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
    """The examples' places.

    Attributes:
        splits: stores and names of their splits. part: int64 ``[examples]``, the split that each example is of.
            number: int64 ``[examples]``, its place there.
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
        """The texts of the examples, of a pair both, one behind the other; words with spaces between."""
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
        """The words of each example; of stores with a column of words."""
        found = [list[str]() for _ in self.part]
        for at, frame, columns in self._frames():
            for place, words in zip(at, frame[columns["tokens"]], strict=True):
                found[place] = [*map(str, words)]
        return found

    def _frames(self) -> Iterator[tuple[IntArray, pd.DataFrame, dict[str, Any]]]:
        """For each split the examples that are of it, their rows of the stored table, and its columns by role."""
        for k, (store, split) in enumerate(self.splits):
            at = np.flatnonzero(self.part == k)
            yield at, store[split].examples.iloc[self.number[at]], store.manifest["columns"]


def joined(origins: Sequence[Origin | None]) -> Origin | None:
    """The examples of several, one behind the other; None where any is unknown."""
    known = [origin for origin in origins if origin is not None]
    if len(known) < len(origins):
        return None
    starts = np.cumsum([0, *(len(origin.splits) for origin in known)])
    return Origin(
        tuple(split for origin in known for split in origin.splits),
        np.concatenate([origin.part + start for origin, start in zip(known, starts, strict=False)]),
        np.concatenate([origin.number for origin in known]),
    )
