"""Sequences that come more than once: encoded by the part that has the first of them, kept for those that follow.

A repeated sequence belongs to its *home*, the part with its first row, and is encoded in the home's own batches of
repeated sequences. Any part can make these batches again, to the same bytes: parts stay independent of one another,
and what is kept in memory only saves work.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusionkit.encode.batches import PaddedBatch, Part, PartInput, PartReader
from fusionkit.encode.rows import batch_rows, forward
from fusionkit.encode.staging import rounded
from fusionkit.encoder import Encoder
from fusionkit.ragged import IntArray, flat_rows

KEPT_BYTES = 256 << 20


class Kept(NamedTuple):
    """All rows of one sequence, in the store's precision.

    Attributes:
        states: ``[layers, rows, hidden]``. scales: float32 ``[layers, rows]`` of int8 states.
    """

    states: Tensor
    scales: Tensor | None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.states.nbytes + (0 if self.scales is None else self.scales.nbytes)


class Repeats:
    """Gives the rows of repeated sequences; keeps those used last, up to :data:`KEPT_BYTES`.

    Args:
        dtype: the precision to keep them in.
    """

    def __init__(self, reader: PartReader, plan: dict[str, Any], encoder: Encoder, dtype: torch.dtype) -> None:
        self._reader, self._plan, self._encoder, self._dtype = reader, plan, encoder, dtype
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._bytes = 0

    def rows_of(self, part: Part, given: PartInput, numbers: IntArray) -> dict[int, Kept]:
        """The rows of these sequences, each named by the number of the first example that has it.

        Args:
            part, given: the part at work; what is at home in it is encoded now.
        """
        found = {number: self._kept[number] for number in numbers.tolist() if number in self._kept}
        homes: dict[Part, set[int]] = {}
        for number in numbers.tolist():
            if number not in found:
                homes.setdefault(self._reader.home(number), set()).add(number)
        for home, missing in homes.items():
            found |= self._encoded(given if home == part else self._reader.read(home), missing)
        for number, kept in found.items():
            if number not in self._kept:
                self._bytes += kept.size
            self._kept[number] = kept
            self._kept.move_to_end(number)
        while self._bytes > KEPT_BYTES:
            self._bytes -= self._kept.popitem(last=False)[1].size
        return found

    def _encoded(self, home: PartInput, wanted: set[int]) -> dict[int, Kept]:
        """From those batches of the home's that hold what is wanted; each is run whole, or its numbers would differ."""
        found = {}
        for batch in home.batches(home.firsts(), self._plan["batch_tokens"], self._encoder.pad_id):
            numbers = (batch.examples + home.first_number).tolist()
            if wanted.isdisjoint(numbers):
                continue
            block, ends = self._all_rows(home, batch)
            for at, number in enumerate(numbers):
                if number in wanted:
                    rows = slice(ends[at], ends[at + 1])
                    # A copy of its own: a view would hold the whole batch.
                    scales = None if block.scales is None else block.scales[:, rows].clone()
                    found[number] = Kept(block.states[:, rows].clone(), scales)
        return found

    def _all_rows(self, home: PartInput, batch: PaddedBatch) -> tuple[Kept, IntArray]:
        """Each row of a batch's examples, zeros where masked, and the examples' offsets among them."""
        states = forward(self._encoder, batch)
        picked, ends = flat_rows(home.rows.row_offsets, batch.examples)
        line = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
        sound = np.flatnonzero(home.rows.mask[picked])
        target = torch.from_numpy(sound).to(self._encoder.device)
        shape, device = (len(self._plan["layers"]), len(picked)), self._encoder.device
        block = Kept(
            torch.zeros(*shape, self._plan["hidden"], dtype=self._dtype, device=device),
            torch.zeros(shape, device=device) if self._dtype == torch.int8 else None,
        )
        for k, rows in batch_rows(states, self._plan["layers"], home, batch, picked[sound], line[sound]):
            values, scales = rounded(rows, self._dtype)
            block.states[k, target] = values
            if block.scales is not None and scales is not None:
                block.scales[k, target] = scales
        return block, ends
