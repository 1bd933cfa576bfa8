"""The sub-tokens behind the rows of a task's splits: what an encoder reads to compute their states again.

A row of a store of ``tokens`` is one sub-token, special ones included: row r has the id ``token_ids[r]``, and the
sequence with ``offsets[s] ≤ r < offsets[s + 1]`` is what the encoder reads at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.concatenation import ConcatenatedStates
from fusionkit.dataset.split import States
from fusionkit.dataset.stores import Stores, refuse_other_rows, stores_of
from fusionkit.ragged import IntArray
from fusionkit.store import Split

# Padded lengths are multiples of this, so that the pieces of minibatches have few shapes. oneDNN compiles kernels for
# each shape of a matrix product, and keeps 1,024 of them. Freed memory of many sizes is slow to use again, too.
MULTIPLE = 8


@dataclass(frozen=True)
class Tokens:
    """Sequences of sub-tokens.

    Attributes:
        token_ids: int32 ``[rows]``. segments: uint8 ``[rows]``, the tokenizer's token types.
        offsets: int64 ``[sequences + 1]`` into them.
    """

    token_ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    offsets: IntArray

    def sequences_of(self, rows: IntArray) -> IntArray:
        """The sequence of each row, int64 ``[n]``."""
        # From the right: an empty sequence begins where the next one does, and holds no row.
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def padded_lengths(self, sequences: IntArray) -> IntArray:
        """The lengths to which sequences are padded where each is the longest of a batch, int64 ``[n]``.

        They are multiples of :data:`MULTIPLE`, up to the length of the longest sequence of all.
        """
        lengths = self.offsets[sequences + 1] - self.offsets[sequences]
        padded: IntArray = np.minimum(-(-lengths // MULTIPLE) * MULTIPLE, self._longest)
        return padded

    @cached_property
    def _longest(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))

    @classmethod
    def joined(cls, parts: Iterable[Tokens]) -> Tokens:
        """The sequences of several, concatenated."""
        found = list(parts)
        starts = np.cumsum([0, *(len(part.token_ids) for part in found)])
        offsets = [part.offsets[:-1] + start for part, start in zip(found, starts, strict=False)]
        return cls(
            np.concatenate([part.token_ids for part in found]),
            np.concatenate([part.segments for part in found]),
            np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
        )


class TokenSource:
    """Finds the sub-tokens behind the states of a store, or of a mix of stores."""

    def __init__(self, store: Stores) -> None:
        refuse_other_rows(store)
        stores = stores_of(store)
        # A store gives the same object for the states of a split each time.
        self._splits = {id(each[name].hidden_states): each[name] for each in stores for name in each.splits}
        self._known: dict[int, Tokens] = {}

    def of(self, states: States) -> Tokens:
        """The sub-tokens of all rows of these states; read once."""
        if id(states) not in self._known:
            if isinstance(states, ConcatenatedStates):
                self._known[id(states)] = Tokens.joined(map(self.of, states.parts))
            else:
                self._known[id(states)] = tokens_of(self._splits[id(states)])
        return self._known[id(states)]


def tokens_of(split: Split) -> Tokens:
    """The sub-tokens of a stored split."""
    return Tokens(split.token_ids, split.segments, split.token_offsets)
