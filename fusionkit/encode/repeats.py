"""Sequences that come more than once: encoded by the part that has the first of them, kept for those that follow.

A repeated sequence belongs to its *home*, the part with its first row, and is encoded in the home's own batches of
repeated sequences. A part that comes later takes its rows from memory or from the home's chunk. Where it finds them in
neither it makes the batches again, to the same bytes: parts stay independent of one another.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusionkit.encode.batches import PaddedBatch, Part, PartInput, PartReader
from fusionkit.encode.output_blocks import TORCH_DTYPES, rounded
from fusionkit.encode.rows import batch_rows, forward
from fusionkit.encoder import Encoder
from fusionkit.errors import StoreError
from fusionkit.files import read_json
from fusionkit.places import Place
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.store.chunks import chunk_fault, map_chunk
from fusionkit.store.layout import chunk_path, part_path
from fusionkit.store.manifest import split_layout

KEPT_BYTES = 32 << 20


class CachedRows(NamedTuple):
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


class RepeatCache:
    """Gives the rows of repeated sequences; keeps those used last, up to :data:`KEPT_BYTES`.

    Args:
        dtype: the precision to keep them in; chunks are looked into where it is the store's.
    """

    def __init__(
        self, store: Place, plan: dict[str, Any], encoder: Encoder, reader: PartReader, dtype: torch.dtype
    ) -> None:
        self._store, self._plan, self._encoder, self._reader, self._dtype = store, plan, encoder, reader, dtype
        self._kept: OrderedDict[int, CachedRows] = OrderedDict()
        self._bytes = 0
        self._mapped = plan["compression"] == "none" and TORCH_DTYPES[plan["dtype"]] == dtype
        self._sound: dict[Part, bool] = {}

    def written(self, part: Part) -> None:
        """This process has just written a part's chunk: it need not be checked before its rows are copied."""
        self._sound[part] = True

    def rows_of(self, part: Part, given: PartInput, numbers: IntArray) -> dict[int, CachedRows]:
        """The rows of these sequences, each named by the number of the first example that has it.

        Args:
            part, given: the part at work; what is at home in it is encoded now.
        """
        found = {number: self._kept[number] for number in numbers.tolist() if number in self._kept}
        homes: dict[Part, set[int]] = {}
        for number in numbers.tolist():
            if number not in found:
                home = self._reader.home(number)
                if home != part and (kept := self._stored(number, home.split)) is not None:
                    found[number] = kept
                else:
                    homes.setdefault(home, set()).add(number)
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

    def _stored(self, number: int, split: str) -> CachedRows | None:
        """A sequence's rows out of the chunks that hold them, if these are finished and sound."""
        if not self._mapped or not isinstance(self._store, Path):
            return None
        layout = split_layout(self._plan, split)
        start, stop = self._reader.rows_of(number)
        pieces = []
        for chunk in range(start // layout.rows_per_chunk, (stop - 1) // layout.rows_per_chunk + 1):
            if not self._is_sound(Part(split, chunk)):
                return None
            low, high = layout.chunk_rows(chunk)
            inside = slice(max(start, low) - low, min(stop, high) - low)
            # Mapped anew each time: pages of a map that is kept stay in this process's memory.
            maps = [map_chunk(chunk_path(self._store, split, chunk, array.name), array) for array in layout.arrays]
            pieces.append([found[:, inside].copy() for found in maps])
        states = torch.from_numpy(np.concatenate([piece[0] for piece in pieces], axis=1)).view(self._dtype)
        scales = [piece[1] for piece in pieces if len(piece) > 1]
        device = self._encoder.device
        joined = torch.from_numpy(np.concatenate(scales, axis=1)).to(device) if scales else None
        return CachedRows(states.to(device), joined)

    def _is_sound(self, part: Part) -> bool:
        """Whether a part is finished; its bytes are read once, so that damage in a chunk does not spread to others."""
        record = part_path(self._store, part.split, part.chunk)
        if not record.is_file():
            return False  # not remembered: it may be on its way
        if part not in self._sound:
            layout = split_layout(self._plan, part.split)
            places = {array: chunk_path(self._store, part.split, part.chunk, array.name) for array in layout.arrays}
            try:
                told = read_json(record)["crc32c"]
                faults = [chunk_fault(path, array, "none", told[array.name]) for array, path in places.items()]
                self._sound[part] = not any(faults)
            except (OSError, StoreError, LookupError, TypeError):
                self._sound[part] = False
        return self._sound[part]

    def _encoded(self, home: PartInput, wanted: set[int]) -> dict[int, CachedRows]:
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
                    found[number] = CachedRows(block.states[:, rows].clone(), scales)
        return found

    def _all_rows(self, home: PartInput, batch: PaddedBatch) -> tuple[CachedRows, IntArray]:
        """Each row of a batch's examples, zeros where masked, and the examples' offsets among them."""
        states = forward(self._encoder, batch)
        picked, ends = flat_rows(home.rows.row_offsets, batch.examples)
        line = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
        sound = np.flatnonzero(home.rows.mask[picked])
        target = torch.from_numpy(sound).to(self._encoder.device)
        shape, device = (len(self._plan["layers"]), len(picked)), self._encoder.device
        block = CachedRows(
            torch.zeros(*shape, self._plan["hidden"], dtype=self._dtype, device=device),
            torch.zeros(shape, device=device) if self._dtype == torch.int8 else None,
        )
        for k, rows in batch_rows(states, self._plan["layers"], home, batch, picked[sound], line[sound]):
            values, scales = rounded(rows, self._dtype)
            block.states[k, target] = values
            if block.scales is not None and scales is not None:
                block.scales[k, target] = scales
        return block, ends
