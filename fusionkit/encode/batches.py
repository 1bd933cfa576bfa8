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
from fusionkit.encode.duplicates import NONE
from fusionkit.places import Place
from fusionkit.ragged import IntArray, offsets_of
from fusionkit.specs import MASKED
from fusionkit.store.layout import NOT_MASKED, SmallArray, small_arrays
from fusionkit.store.manifest import sequences_of, split_layout


@dataclass(frozen=True)
class Part:
    """One chunk of one split: the unit of encoding work."""

    split: str
    chunk: int


@dataclass(frozen=True)
class PaddedBatch:
    """Sequences side by side.

    Attributes:
        examples: int64 ``[batch]``, numbers inside the part.
        token_ids, mask, segments: int64 ``[batch, length]``, padding ids and zeros behind each end.
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
        first_number: the first example's number among all of the store's.
        first_alike: int64 ``[examples]``, as :class:`fusionkit.encode.duplicates.DuplicateFinder` gives it.
    """

    token_ids: Tensor
    segments: Tensor
    offsets: IntArray
    rows: Rows
    first_row: int
    first_number: int
    first_alike: IntArray

    @property
    def tokens(self) -> int:
        """How many sub-tokens its examples have together."""
        return int(self.offsets[-1])

    def unique(self) -> IntArray:
        """The examples that come once in the store."""
        return np.flatnonzero(self.first_alike == NONE)

    def repeated(self) -> IntArray:
        """The examples that come more than once in the store."""
        return np.flatnonzero(self.first_alike != NONE)

    def owned(self) -> IntArray:
        """The repeated examples that this part owns: each the first of its equals, with its first row in this part."""
        number = np.arange(len(self.first_alike)) + self.first_number
        starts = self.rows.row_offsets[:-1] + self.first_row
        return np.flatnonzero((self.first_alike == number) & (starts >= 0))

    def batches(self, chosen: IntArray, budget: int, pad_id: int) -> Iterator[PaddedBatch]:
        """Chosen examples in batches of at most ``budget`` padded sub-tokens, longest first."""
        lengths = np.diff(self.offsets)
        for at in sorted_batches(lengths[chosen], budget):
            examples = chosen[at]
            steps = np.arange(int(lengths[examples[0]]))
            inside = steps < lengths[examples, None]  # [batch, length]
            source = torch.from_numpy(np.where(inside, self.offsets[examples, None] + steps, 0))
            mask = torch.from_numpy(inside)
            yield PaddedBatch(
                examples,
                torch.where(mask, self.token_ids[source], pad_id),
                mask.to(torch.int64),
                torch.where(mask, self.segments[source], 0),
            )

    def all_batches(self, budget: int, pad_id: int) -> Iterator[PaddedBatch]:
        """Every batch that this part has to encode."""
        for chosen in (self.unique(), self.owned()):
            yield from self.batches(chosen, budget, pad_id)


class PartReader:
    """Reads the inputs of a planned store's parts; opens each array once."""

    def __init__(self, store: Place, plan: dict[str, Any]) -> None:
        self._store, self._plan = store, plan
        self._arrays: dict[str, dict[str, SmallArray]] = {}
        self._row_offsets: dict[str, IntArray] = {}
        counts = [sequences_of(fields) for fields in plan["splits"].values()]
        starts: list[int] = offsets_of(np.array(counts, dtype=np.int64)).tolist()
        self._starts: dict[str, int] = dict(zip(plan["splits"], starts, strict=False))

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
        kind = self._plan["rows"]
        masked = arrays["mlm_labels"].read(start, stop) != NOT_MASKED if kind == MASKED else None
        return PartInput(
            token_ids=torch.from_numpy(arrays["token_ids"].read(start, stop).astype(np.int64)),
            segments=torch.from_numpy(arrays["segments"].read(start, stop).astype(np.int64)),
            offsets=offsets,
            rows=lay_rows(kind, offsets, words, np.diff(row_offsets[first : last + 1]), masked),
            first_row=int(row_offsets[first]) - row_start,
            first_number=self._starts[part.split] + first,
            first_alike=arrays["first_alike"].read(first, last),
        )

    def owner(self, number: int) -> Part:
        """The part with the first row of the example of this number."""
        split = self._split_of(number)
        return Part(split, self.rows_of(number)[0] // split_layout(self._plan, split).rows_per_chunk)

    def rows_of(self, number: int) -> tuple[int, int]:
        """The rows, half-open, that the example of this number has in its split."""
        split = self._split_of(number)
        _, row_offsets = self._of_split(split)
        start, stop = row_offsets[number - self._starts[split] :][:2].tolist()
        return start, stop

    def _split_of(self, number: int) -> str:
        return [split for split, start in self._starts.items() if start <= number][-1]

    def _of_split(self, split: str) -> tuple[dict[str, SmallArray], IntArray]:
        if split not in self._arrays:
            names = small_arrays(self._plan["rows"])
            self._arrays[split] = {name: SmallArray(self._store, split, name) for name in names}
            self._row_offsets[split] = self._arrays[split]["row_offsets"].read()
        return self._arrays[split], self._row_offsets[split]


def sorted_batches(lengths: IntArray, budget: int) -> Iterator[IntArray]:
    """Examples in batches of similar length, longest first, each at most ``budget`` padded sub-tokens.

    The longest come first: where memory is too small for a batch, that shows at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]  # an empty text has nothing to encode
    start = 0
    while start < len(order):
        size = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size
