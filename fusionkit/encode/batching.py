"""Which sequences are encoded together: batches of similar length, longest first.

    cost of a batch = overhead + longest · sequences            the sum over all batches is as small as it can be

Symbols: costs are in sub-tokens, padding included; the overhead is the fixed cost of a batch. Sequences are sorted by
length, longest first, and a batch is a run of neighbours. There is a cheapest cut in which each batch begins where the
length changes, or is full. Any other batch could take over one sequence from the batch before it, which pads to a
greater length, and the cost would not rise. So only these cuts are tried, from the end.

A batch has at least :data:`LEAST_TOKENS` sub-tokens; a smaller one repeats its first sequences. On CPUs, matrix
products of 5 to 11 rows have other last bits with two threads than with one (oneDNN uses other kernels), and a part's
bytes must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from fusionkit.ragged import IntArray

VERSION = 2  # part of a store's identity: other batches may give other last bits
LEAST_TOKENS = 32
# Padded sub-tokens per batch. One CPU core's caches hold a batch of about a thousand; a GPU needs many more.
TOKENS = {"cpu": 1024, "cuda": 32768}
# The fixed cost of a batch, in sub-tokens: calls in Python, and on a GPU kernel launches. That of a GPU was measured
# with an encoder of this width. A launch takes as long for a wider one, while the time of a sub-token grows with the
# square of the width (docs/design.md).
OVERHEAD = {"cpu": 32, "cuda": 4096}
MEASURED_WIDTH = 384


@dataclass(frozen=True)
class Batching:
    """How sequences are cut into batches.

    Attributes:
        tokens: most padded sub-tokens of a batch, unless a single sequence has more. overhead: a batch's fixed cost.
    """

    tokens: int
    overhead: int = OVERHEAD["cpu"]

    @classmethod
    def on(cls, device: str, hidden: int) -> Self:
        """The batching for a kind of device, ``cpu`` or ``cuda``, and an encoder whose states are ``hidden`` wide."""
        overhead = OVERHEAD[device]
        if device == "cuda":
            overhead = round(overhead * (MEASURED_WIDTH / hidden) ** 2)
        return cls(TOKENS[device], overhead)

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Self:
        """The batching that a plan or manifest records, which makes the same batches again."""
        return cls(plan["batch_tokens"], plan["batch_overhead"])

    def fewest(self, length: int) -> int:
        """The smallest number of sequences of this length in a batch."""
        return -(-LEAST_TOKENS // length)

    def cut(self, lengths: IntArray) -> Iterator[IntArray]:
        """Cut sequences with these lengths ``[n]`` into batches of sequence indices; length 0 is in no batch.

        The longest come first: if memory is too small for a batch, that shows at the start.
        """
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]  # an empty text has nothing to encode
        for start, stop in pairwise(_cheapest(lengths[order], self.tokens, self.overhead)):
            yield order[start:stop]


def _cheapest(lengths: IntArray, tokens: int, overhead: int) -> list[int]:
    """Bounds of the batches with the least total cost; ``lengths`` descending."""
    changes = np.flatnonzero(np.diff(lengths, prepend=0))  # where a batch may begin without being full
    cost = np.full(len(lengths) + 1, np.inf)  # of all batches from here to the end
    after = np.zeros(len(lengths) + 1, dtype=np.int64)  # where the first of them ends
    cost[-1] = 0
    longest, full = lengths.tolist(), len(lengths)
    for stop in range(len(lengths), 0, -1):
        # The first sequence of the fullest batch that ends here: a batch that begins earlier has more padded tokens.
        full = min(full, stop - 1)
        while full and longest[full - 1] * (stop - full + 1) <= tokens:
            full -= 1
        if cost[stop] == np.inf:
            continue
        begins = np.append(changes[np.searchsorted(changes, full) : np.searchsorted(changes, stop)], full)
        found = cost[stop] + overhead + lengths[begins] * (stop - begins)
        better = found < cost[begins]
        cost[begins[better]], after[begins[better]] = found[better], stop
    bounds = [0]
    while bounds[-1] < len(lengths):
        bounds.append(int(after[bounds[-1]]))
    return bounds
