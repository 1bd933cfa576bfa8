"""A part's examples read back from the plan, and padded into batches of similar length.

Which examples, in which batches, depends on the plan alone: so do a part's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.alignment import Rows, lay_rows
from fusionkit.places import Place
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.store.layout import SMALL_ARRAYS, SmallArray
from fusionkit.store.manifest import split_layout


@dataclass(frozen=True)
class Part:
    """One chunk of one split: what one unit of encoding work makes."""

    split: str
    chunk: int


@dataclass(frozen=True)
class PaddedBatch:
    """Sequences side by side, and the examples that consist of them.

    Attributes:
        examples: int64 ``[n]``, numbers inside the part. lines: int64 ``[n]``, the line of each in the batch;
            examples with the same sub-tokens share one.
        token_ids, mask, segments: int64 ``[batch, length]``, zeros where padded.
    """

    examples: IntArray
    lines: IntArray
    token_ids: Tensor
    mask: Tensor
    segments: Tensor


@dataclass(frozen=True)
class PartInput:
    """All examples that have a row in a part.

    Attributes:
        token_ids, segments: int64 ``[tokens]``. offsets: int64 ``[examples + 1]`` into them.
        rows: the examples' rows. first_row: where the first of those rows lies, counted from the part's own
            first row: negative where the part begins inside an example.
    """

    token_ids: Tensor
    segments: Tensor
    offsets: IntArray
    rows: Rows
    first_row: int

    @property
    def tokens(self) -> int:
        """How many sub-tokens its examples have together."""
        return int(self.offsets[-1])

    def batches(self, budget: int, pad_id: int) -> Iterator[PaddedBatch]:
        """The distinct sequences in batches of at most ``budget`` padded sub-tokens, longest first."""
        lengths = np.diff(self.offsets)
        first = self._first_alike()
        # Examples behind one another that are alike: those of sequence s are grouped[bounds[s]:bounds[s + 1]].
        grouped = np.argsort(first, kind="stable")
        bounds = offsets_of(np.bincount(first, minlength=len(first)))
        for chosen in sorted_batches(np.where(first == np.arange(len(first)), lengths, 0), budget):
            steps = np.arange(int(lengths[chosen[0]]))
            inside = steps < lengths[chosen, None]  # [batch, length]
            at = torch.from_numpy(np.where(inside, self.offsets[chosen, None] + steps, 0))
            mask = torch.from_numpy(inside)
            members, ends = flat_rows(bounds, chosen)
            yield PaddedBatch(
                grouped[members],
                np.repeat(np.arange(len(chosen)), np.diff(ends)),
                torch.where(mask, self.token_ids[at], pad_id),
                mask.to(torch.int64),
                torch.where(mask, self.segments[at], 0),
            )

    def _first_alike(self) -> IntArray:
        """For each example the first one with the same sub-tokens and segments: it is encoded for both."""
        ids, segments = self.token_ids.numpy(), self.segments.numpy()
        seen: dict[bytes, int] = {}
        spans = zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True)
        return np.array(
            [
                seen.setdefault(ids[start:stop].tobytes() + segments[start:stop].tobytes(), example)
                for example, (start, stop) in enumerate(spans)
            ],
            dtype=np.int64,
        )


class PartReader:
    """Gives the inputs of a planned store's parts; opens each array once."""

    def __init__(self, store: Place, plan: dict[str, Any]) -> None:
        self._store, self._plan = store, plan
        self._arrays: dict[str, dict[str, SmallArray]] = {}
        self._row_offsets: dict[str, IntArray] = {}

    def read(self, part: Part) -> PartInput:
        """The examples of a part, as the plan laid them out.

        Raises:
            StoreError: one of the arrays is missing or damaged.
        """
        arrays, row_offsets = self._of_split(part.split)
        row_start, row_stop = split_layout(self._plan, part.split).chunk_rows(part.chunk)
        first = int(np.searchsorted(row_offsets, row_start, side="right")) - 1
        last = int(np.searchsorted(row_offsets, row_stop, side="left"))
        offsets = arrays["token_offsets"].read(first, last + 1)
        start, stop = int(offsets[0]), int(offsets[-1])
        offsets = offsets - start
        words = arrays["word_index"].read(start, stop)
        return PartInput(
            token_ids=torch.from_numpy(arrays["token_ids"].read(start, stop).astype(np.int64)),
            segments=torch.from_numpy(arrays["segments"].read(start, stop).astype(np.int64)),
            offsets=offsets,
            rows=lay_rows(self._plan["rows"], offsets, words, np.diff(row_offsets[first : last + 1])),
            first_row=int(row_offsets[first]) - row_start,
        )

    def _of_split(self, split: str) -> tuple[dict[str, SmallArray], IntArray]:
        if split not in self._arrays:
            self._arrays[split] = {name: SmallArray(self._store, split, name) for name in SMALL_ARRAYS}
            self._row_offsets[split] = self._arrays[split]["row_offsets"].read()
        return self._arrays[split], self._row_offsets[split]


def sorted_batches(lengths: IntArray, budget: int) -> Iterator[IntArray]:
    """Examples in batches of similar length, longest first, each at most ``budget`` padded sub-tokens.

    Longest first, so that the largest batch comes when it can still fail cheaply.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]  # an empty text has nothing to encode
    start = 0
    while start < len(order):
        size = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size
