"""Counting spans on tag numbers: what an F1 after every epoch of every run can afford.

    a span begins at t   where tag t is B-x, or is I-x behind anything but B-x and I-x of its sentence
    and ends             before the next span, ``O`` or sentence

    F1 = 2 · right / (found + gold)

Source: conlleval's rules, as seqeval has them; the tests hold both against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusionkit.ragged import IntArray


class Spans:
    """The spans of one split's words.

    Args:
        names: the tag of each number: ``O``, ``B-x`` or ``I-x``. offsets: int64 ``[sentences + 1]`` into the words.
        gold: int64 ``[words]``.
    """

    def __init__(self, names: Sequence[str], offsets: IntArray, gold: IntArray) -> None:
        kinds = {kind: k for k, kind in enumerate(dict.fromkeys(name[2:] for name in names if name != "O"), start=1)}
        self._kind = np.array([kinds.get(name[2:], 0) for name in names])  # 0 is no span
        self._opens = np.array([name.startswith("B-") for name in names])
        self._words = int(offsets[-1])
        self._first = np.zeros(self._words + 1, dtype=bool)
        self._first[offsets] = True
        self._gold = self.of(gold)

    def f1(self, tags: IntArray) -> float:
        """Micro F1 of tags ``[words]``; 0 where nothing is right."""
        found = self.of(tags)
        right = len(np.intersect1d(self._gold, found, assume_unique=True))
        return 2 * right / (len(found) + len(self._gold)) if right else 0.0

    def of(self, tags: IntArray) -> NDArray[np.int64]:
        """The spans that tags ``[words]`` mark: first word, word behind the last and kind of each, as one number."""
        kind = self._kind[tags]
        breaks = self._first[:-1] | (kind != np.roll(kind, 1)) | self._opens[tags]  # what stood before ends here
        places = np.append(np.flatnonzero(breaks), self._words)
        starts, ends = places[:-1], places[1:]
        marked = kind[starts] > 0
        starts, ends = starts[marked], ends[marked]
        found: NDArray[np.int64] = (starts * (self._words + 1) + ends) * (len(self._kind) + 1) + kind[starts]
        return found
