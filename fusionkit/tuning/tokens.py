"""The sub-tokens behind the rows of a task's splits: what an encoder reads to compute their states again.

Sub-token t of a split, special ones included, has the id ``token_ids[t]``, and the sequence with ``offsets[s] ≤ t <
offsets[s + 1]`` is what the encoder reads at once. Row r of a store of ``tokens`` is sub-token r; of a store of
``masked-tokens`` the r-th that is masked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fusionkit.dataset.concatenation import ConcatenatedStates
from fusionkit.dataset.split import States, TaskSplit
from fusionkit.dataset.stores import Stores, refuse_other_rows, stores_of
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.specs import MASKED
from fusionkit.store import Split

# Padded lengths are multiples of this, so that the pieces of minibatches have few shapes. oneDNN compiles kernels for
# each shape of a matrix product, and keeps 1,024 of them. Freed memory of many sizes is slow to use again, too.
MULTIPLE = 8


@dataclass(frozen=True)
class Tokens:
    """Sequences of sub-tokens.

    Attributes:
        token_ids: int32 ``[tokens]``. segments: uint8 ``[tokens]``, the tokenizer's token types.
        offsets: int64 ``[sequences + 1]`` into them. of_rows: int64 ``[rows]``, the sub-token of each stored row; None
            where the rows are the sub-tokens.
    """

    token_ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    offsets: IntArray
    of_rows: IntArray | None = None

    def sequences_of(self, places: IntArray) -> IntArray:
        """The sequence of each sub-token, int64 ``[n]``."""
        # From the right: an empty sequence begins where the next one does, and holds no sub-token.
        return np.searchsorted(self.offsets, places, side="right") - 1

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
        stores, self._masked = stores_of(store), store.rows == MASKED
        # A store gives the same object for the states of a split each time.
        self._splits = {id(each[name].hidden_states): each[name] for each in stores for name in each.splits}
        self._known: dict[int, Tokens] = {}

    def of(self, states: States) -> Tokens:
        """The sub-tokens of all rows of these states; read once."""
        if id(states) not in self._known:
            if isinstance(states, ConcatenatedStates):
                self._known[id(states)] = Tokens.joined(map(self.of, states.parts))
            else:
                split = self._splits[id(states)]
                found = tokens_of(split)
                self._known[id(states)] = replace(found, of_rows=split.masked_tokens) if self._masked else found
        return self._known[id(states)]

    def rows_of(self, split: TaskSplit, whole: bool) -> TaskSplit:
        """A split whose rows are sub-tokens, in place of stored rows; ``whole``: all of each sequence, of which the
        head reads those of the stored rows.
        """
        tokens = self.of(split.states)
        if tokens.of_rows is None:
            return split
        masked = tokens.of_rows[split.rows]
        if not whole:
            return replace(split, rows=masked)
        rows, offsets = flat_rows(tokens.offsets, tokens.sequences_of(masked[split.offsets[:-1]]))
        return replace(split, rows=rows, offsets=offsets, read=np.isin(rows, masked))


def tokens_of(split: Split) -> Tokens:
    """The sub-tokens of a stored split."""
    return Tokens(split.token_ids, split.segments, split.token_offsets)
