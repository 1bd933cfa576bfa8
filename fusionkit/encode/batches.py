"""A part's examples: read from the planned store, padded into batches of similar length, their states taken as rows.

The examples and their batches depend only on the plan, and so do a part's bytes. A row of one sub-token is its state, a
row of several sub-tokens is the mean of their states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.alignment import Rows, lay_rows
from fusionkit.encode.batching import Batching
from fusionkit.encoder import Encoder
from fusionkit.io.places import Place
from fusionkit.machine.devices import sent_to
from fusionkit.ragged import IntArray, flat_rows, ordered_segment_mean
from fusionkit.specs import MASKED
from fusionkit.store.layout import NOT_MASKED, SmallArray, checked_offsets, small_arrays
from fusionkit.store.manifest import sequences_of, split_layout
from fusionkit.store.presence import states_path

NONE = -1  # in place of an example's number: there is none


@dataclass(frozen=True)
class Part:
    """One chunk of one split: the unit of encoding work."""

    split: str
    chunk: int


@dataclass(frozen=True)
class PaddedBatch:
    """A padded batch of sequences.

    Attributes:
        examples: int64 ``[n]``, indices in the part.
        token_ids, mask, segments: int64 ``[batch, length]``; padding ids and zeros follow the end of each sequence.
            After the first n sequences, some of them may be repeated to fill up a small batch.
    """

    examples: IntArray
    token_ids: Tensor
    mask: Tensor
    segments: Tensor


@dataclass(frozen=True)
class Gather:
    """The places of the wanted rows in a padded batch.

    Attributes:
        tokens: int64 ``[m]``, the rows' sub-tokens as indices into ``[batch · length]``. ends: int64 ``[n + 1]``, each
            row's offsets into them; None where every row has one sub-token.
    """

    tokens: Tensor
    ends: Tensor | None


@dataclass(frozen=True)
class PartInput:
    """All examples that have a row in a part.

    Attributes:
        token_ids, segments: int64 ``[tokens]``. offsets: int64 ``[examples + 1]`` into them. NumPy pads them: PyTorch
            would start a team of threads for each batch, which on 16 cores took ten times as long.
        rows: the examples' rows. first_row: the index of the first of those rows, counted from the part's first row;
            negative where the part begins inside an example.
        first_number: the first example's number among all examples of the store.
        first_alike: int64 ``[examples]``, from :meth:`fusionkit.encode.repeats.DuplicateFinder.first`.
    """

    token_ids: IntArray
    segments: IntArray
    offsets: IntArray
    rows: Rows
    first_row: int
    first_number: int
    first_alike: IntArray

    @property
    def tokens(self) -> int:
        """The number of sub-tokens of all its examples."""
        return int(self.offsets[-1])

    def unique(self) -> IntArray:
        """The examples that come once in the store."""
        return np.flatnonzero(self.first_alike == NONE)

    def repeated(self) -> IntArray:
        """The examples that come more than once in the store."""
        return np.flatnonzero(self.first_alike != NONE)

    def owned(self) -> IntArray:
        """The repeated examples that this part owns: each is the first of its duplicates and begins in this part."""
        number = np.arange(len(self.first_alike)) + self.first_number
        starts = self.rows.row_offsets[:-1] + self.first_row
        return np.flatnonzero((self.first_alike == number) & (starts >= 0))

    def batches(self, chosen: IntArray, batching: Batching, pad_id: int) -> Iterator[PaddedBatch]:
        """The chosen examples in batches, longest first."""
        lengths = self.offsets[chosen + 1] - self.offsets[chosen]
        for at in batching.cut(lengths):
            examples = chosen[at]
            filled = np.resize(examples, max(len(at), batching.fewest(int(lengths[at[0]]))))
            inside, source = padded_index(self.offsets, filled)
            token_ids = np.where(inside, self.token_ids[source], pad_id)
            segments = np.where(inside, self.segments[source], 0)
            yield PaddedBatch(examples, *map(torch.from_numpy, (token_ids, inside.astype(np.int64), segments)))

    def all_batches(self, batching: Batching, pad_id: int) -> Iterator[PaddedBatch]:
        """Every batch that this part has to encode."""
        for chosen in (self.unique(), self.owned()):
            yield from self.batches(chosen, batching, pad_id)


def padded_index(
    offsets: IntArray, sequences: IntArray, length: int | None = None
) -> tuple[NDArray[np.bool_], IntArray]:
    """Where a padded batch of sequences has sub-tokens, bool ``[n, length]``, and their indices, int64, 0 in padding.

    Args:
        offsets: int64, of all sequences into the sub-tokens. sequences: int64 ``[n]``, at least one. length: at least
            that of the longest sequence; None for exactly that.
    """
    starts = offsets[sequences]
    lengths = offsets[sequences + 1] - starts
    steps = np.arange(int(lengths.max()) if length is None else length)
    inside = steps < lengths[:, None]
    return inside, np.where(inside, starts[:, None] + steps, 0)


class PartReader:
    """Reads the inputs of a planned store's parts; opens each array once."""

    def __init__(self, store: Place, plan: dict[str, Any]) -> None:
        self._store, self._plan = store, plan
        names = small_arrays(plan["rows"])
        self._arrays = {split: {name: SmallArray(store, split, name) for name in names} for split in plan["splits"]}
        self._row_offsets: dict[str, IntArray] = {}
        self._starts: dict[str, int] = {}  # the number of each split's first example, over all splits
        examples = 0
        for split, fields in plan["splits"].items():
            self._starts[split] = examples
            examples += sequences_of(fields)

    def read(self, part: Part) -> PartInput:
        """The examples of a part, as the plan laid them out.

        Raises:
            StoreError: one of the arrays is missing or damaged.
        """
        arrays, row_offsets = self._arrays[part.split], self._row_offsets_of(part.split)
        row_start, row_stop = split_layout(self._plan, part.split).chunk_rows(part.chunk)
        first = int(np.searchsorted(row_offsets, row_start, side="right")) - 1
        last = int(np.searchsorted(row_offsets, row_stop, side="left"))
        path = states_path(self._store) / part.split / "token_offsets"
        offsets = checked_offsets(arrays["token_offsets"].read(first, last + 1), None, path)
        start, stop = int(offsets[0]), int(offsets[-1])
        offsets = offsets - start
        words = arrays["word_index"].read(start, stop)
        kind = self._plan["rows"]
        masked = arrays["mlm_labels"].read(start, stop) != NOT_MASKED if kind == MASKED else None
        return PartInput(
            token_ids=arrays["token_ids"].read(start, stop).astype(np.int64),
            segments=arrays["segments"].read(start, stop).astype(np.int64),
            offsets=offsets,
            rows=lay_rows(kind, offsets, words, np.diff(row_offsets[first : last + 1]), masked),
            first_row=int(row_offsets[first]) - row_start,
            first_number=self._starts[part.split] + first,
            first_alike=arrays["first_alike"].read(first, last),
        )

    def owner(self, number: int) -> Part:
        """The part that has the first row of the example with this number."""
        split = self._split_of(number)
        return Part(split, self.rows_of(number)[0] // split_layout(self._plan, split).rows_per_chunk)

    def rows_of(self, number: int) -> tuple[int, int]:
        """The half-open range of rows of the example with this number, in its split."""
        split = self._split_of(number)
        example = number - self._starts[split]
        start, stop = self._row_offsets_of(split)[example : example + 2].tolist()
        return start, stop

    def _split_of(self, number: int) -> str:
        return [split for split, start in self._starts.items() if start <= number][-1]

    def _row_offsets_of(self, split: str) -> IntArray:
        if split not in self._row_offsets:
            path = states_path(self._store) / split / "row_offsets"
            rows = self._plan["splits"][split]["rows"]
            self._row_offsets[split] = checked_offsets(self._arrays[split]["row_offsets"].read(), rows, path)
        return self._row_offsets[split]


def forward(encoder: Encoder, batch: PaddedBatch) -> tuple[Tensor, ...]:
    """The batch through the encoder: L + 1 tensors ``[batch, length, hidden]``."""
    inputs = (batch.token_ids, batch.mask, batch.segments)
    return encoder.forward(*(sent_to(tensor, encoder.device) for tensor in inputs))


def gather_of(inputs: PartInput, batch: PaddedBatch, picked: IntArray, batch_index: IntArray) -> Gather:
    """The places of rows in their batch.

    Args:
        picked: int64 ``[n]``, rows of ``inputs`` that are not masked. batch_index: int64 ``[n]``, each
            row's example as an index into the batch.
    """
    # From a sub-token's place in the part to its place in the padded batch.
    starts = inputs.offsets[batch.examples[batch_index]]
    tokens = inputs.rows.first[picked] - starts + batch_index * batch.mask.shape[1]
    spans = (inputs.rows.last - inputs.rows.first)[picked]
    if bool((spans == 1).all()):
        return Gather(torch.from_numpy(tokens), None)
    # With the starts and stops of all spans in one array of offsets, the even pieces are the spans.
    bounds = np.stack([tokens, tokens + spans], axis=1).ravel()
    tokens, offsets = flat_rows(bounds, 2 * np.arange(len(spans)))
    return Gather(torch.from_numpy(tokens), torch.from_numpy(offsets))


def batch_rows(states: tuple[Tensor, ...], layers: Sequence[int], gather: Gather) -> Iterator[tuple[int, Tensor]]:
    """The rows of one batch, layer by layer.

    Args:
        layers: those to keep; their order gives their positions (:mod:`fusionkit.store.layer_positions`).

    Yields:
        a layer's position and its rows ``[n, hidden]``.
    """
    device = states[0].device
    source, ends = sent_to(gather.tokens, device), None if gather.ends is None else sent_to(gather.ends, device)
    for position, layer in enumerate(layers):
        # [batch, length, hidden] → [batch · length, hidden] → the sub-tokens wanted
        tokens = states[layer].flatten(0, 1).index_select(0, source)
        yield position, tokens if ends is None else ordered_segment_mean(tokens.float(), ends)
