"""Duplicates: examples with the same sub-tokens, words and segments, and so the same rows.

Masked sub-tokens are compared as the encoder sees them: other words under the same masks are duplicates.
:mod:`fusionkit.encode.repeats` encodes each of them once, which saves 4.2 % of CoNLL-2003's sub-tokens. Duplicates also
decide which sequences are batched together, and so the last bits of the stored states: without this file some chunks
of CoNLL-2003's validation split have other bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionkit.encoder import Tokenized
from fusionkit.ragged import IntArray

NONE = -1


class DuplicateFinder:
    """Collects a digest of each example (16 bytes) and finds those that come more than once."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._has_rows: list[NDArray[np.bool_]] = []

    def add(self, tokenized: Tokenized, row_offsets: IntArray, masked: NDArray[np.bool_] | None = None) -> None:
        """Add examples; ``masked``, bool ``[tokens]``, is True for sub-tokens with a row, where not all have one."""
        bounds = tokenized.token_offsets.tolist()
        parts: list[NDArray[Any]] = [tokenized.token_ids, tokenized.word_index, tokenized.segments]
        parts += [] if masked is None else [masked]
        rows = np.diff(row_offsets).tolist()  # words behind the last sub-token show in nothing else
        digests = []
        for start, stop, count in zip(bounds[:-1], bounds[1:], rows, strict=True):
            digest = hashlib.blake2b(str(count).encode(), digest_size=16)
            for values in parts:
                digest.update(values[start:stop].tobytes())
            digests.append(digest.digest())
        self._digests.append(b"".join(digests))
        self._has_rows.append((np.diff(row_offsets) > 0) & (np.diff(tokenized.token_offsets) > 0))

    def first(self, within: IntArray | None = None) -> IntArray:
        """For each example with duplicates the number of the first of them, else :data:`NONE`: ``[examples]``.

        Args:
            within: int64 ``[examples]``; only examples of the same number here are compared.
        """
        first = first_of(b"".join(self._digests), within)
        several = np.bincount(first, minlength=len(first)) > 1
        found = np.where(several[first], first, NONE)
        # What has no row, or no sub-token to make it of, has no part that it could belong to.
        if len(found):
            found[~np.concatenate(self._has_rows)] = NONE
        return found


def first_of(digests: bytes, within: IntArray | None = None) -> IntArray:
    """For each of ``n`` digests of 16 bytes the number of the first one equal to it: int64 ``[n]``.

    Args:
        within: int64 ``[n]``; only those of the same number here are compared.
    """
    keys = np.frombuffer(digests, "S16")
    if within is not None:
        both = np.column_stack([keys.view(np.uint64).reshape(-1, 2), within.astype(np.uint64)])
        keys = both.view("S24").ravel()
    _, first, same = np.unique(keys, return_index=True, return_inverse=True)
    return first[same]
