"""A part's examples read back from the plan, and padded into batches of similar length.

Which examples, in which batches, depends on the plan alone: so do a part's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.alignment import Rows, lay_rows
from fusionkit.ragged import IntArray
from fusionkit.store.layout import read_small
from fusionkit.store.manifest import split_layout


@dataclass(frozen=True)
class Part:
    """One chunk of one split: what one unit of encoding work makes."""

    split: str
    chunk: int


@dataclass(frozen=True)
class PaddedBatch:
    """Examples side by side.

    Attributes:
        examples: int64 ``[batch]``, their numbers inside the part.
        token_ids, mask, segments: int64 ``[batch, length]``, zeros where padded.
    """

    examples: IntArray
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

    def batches(self, budget: int, pad_id: int) -> Iterator[PaddedBatch]:
        """The examples in batches of at most ``budget`` padded sub-tokens, longest first."""
        lengths = np.diff(self.offsets)
        for examples in sorted_batches(lengths, budget):
            steps = np.arange(int(lengths[examples[0]]))
            inside = steps < lengths[examples, None]  # [batch, length]
            at = torch.from_numpy(np.where(inside, self.offsets[examples, None] + steps, 0))
            mask = torch.from_numpy(inside)
            yield PaddedBatch(
                examples,
                torch.where(mask, self.token_ids[at], pad_id),
                mask.to(torch.int64),
                torch.where(mask, self.segments[at], 0),
            )


def read_part(store: Path, plan: dict[str, Any], part: Part) -> PartInput:
    """The examples of a part, as the plan laid them out."""
    row_start, row_stop = split_layout(plan, part.split).chunk_rows(part.chunk)
    row_offsets = read_small(store, part.split, "row_offsets")
    first = int(np.searchsorted(row_offsets, row_start, side="right")) - 1
    last = int(np.searchsorted(row_offsets, row_stop, side="left"))
    offsets = read_small(store, part.split, "token_offsets", first, last + 1)
    start, stop = int(offsets[0]), int(offsets[-1])
    offsets = offsets - start
    words = read_small(store, part.split, "word_index", start, stop)
    return PartInput(
        token_ids=torch.from_numpy(read_small(store, part.split, "token_ids", start, stop).astype(np.int64)),
        segments=torch.from_numpy(read_small(store, part.split, "segments", start, stop).astype(np.int64)),
        offsets=offsets,
        rows=lay_rows(plan["rows"], offsets, words, np.diff(row_offsets[first : last + 1])),
        first_row=int(row_offsets[first]) - row_start,
    )


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
