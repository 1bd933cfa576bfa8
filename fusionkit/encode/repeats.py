"""Find repeated sequences and encode each once, which saves 4.2 % of CoNLL-2003's sub-tokens.

Duplicates have the same sub-tokens, words and segments, and so the same rows. Masked sub-tokens are compared as the
encoder sees them: sequences that differ only under their masks are duplicates. Duplicates decide which sequences are
batched together, and so the last bits of the stored states.

The *owner* of a repeated sequence is the part with its first row. The owner encodes it, in batches of repeated
sequences. Other parts take its rows from memory or from the owner's chunk. Where neither has them, a part runs the
owner's batches again and gets the same bytes, so parts stay independent of each other.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fusionkit.encode.batches import NONE, PaddedBatch, Part, PartInput, PartReader, batch_rows, forward, gather_of
from fusionkit.encode.batching import Batching
from fusionkit.encode.output_blocks import TORCH_DTYPES, RowBlock, rounded
from fusionkit.encoder import Encoder, Tokenized
from fusionkit.errors import StoreError
from fusionkit.io.files import read_json
from fusionkit.io.places import Place
from fusionkit.machine.devices import sent_to
from fusionkit.ragged import IntArray, flat_rows
from fusionkit.store.chunks import chunk_fault, map_chunk
from fusionkit.store.layout import chunk_path, part_path
from fusionkit.store.manifest import split_layout

CACHED_BYTES = 32 << 20


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
        rows = np.diff(row_offsets).tolist()  # words after the last sub-token change only this
        digests = []
        for start, stop, count in zip(bounds[:-1], bounds[1:], rows, strict=True):
            digest = hashlib.blake2b(str(count).encode(), digest_size=16)
            for values in parts:
                digest.update(values[start:stop].tobytes())
            digests.append(digest.digest())
        self._digests.append(b"".join(digests))
        self._has_rows.append((np.diff(row_offsets) > 0) & (np.diff(tokenized.token_offsets) > 0))

    def first(self, within: IntArray | None = None) -> IntArray:
        """The number of the first duplicate of each example that has duplicates, else :data:`NONE`: ``[examples]``.

        Args:
            within: int64 ``[examples]``; only examples with the same value here are compared.
        """
        first = first_of(b"".join(self._digests), within)
        several = np.bincount(first, minlength=len(first)) > 1
        found = np.where(several[first], first, NONE)
        # An example without rows or without sub-tokens has no owner.
        if len(found):
            found[~np.concatenate(self._has_rows)] = NONE
        return found


def first_of(digests: bytes, within: IntArray | None = None) -> IntArray:
    """The number of the first equal digest for each of ``n`` digests of 16 bytes: int64 ``[n]``.

    Args:
        within: int64 ``[n]``; only digests with the same value here are compared.
    """
    keys = np.frombuffer(digests, "S16")
    if within is not None:
        both = np.column_stack([keys.view(np.uint64).reshape(-1, 2), within.astype(np.uint64)])
        keys = both.view("S24").ravel()
    _, first, same = np.unique(keys, return_index=True, return_inverse=True)
    return first[same]


class RepeatCache:
    """The rows of repeated sequences; a least-recently-used cache of :data:`CACHED_BYTES`.

    Args:
        dtype: the precision of the rows; chunks are read only if it is the store's. digest: of the plan.
    """

    def __init__(self, store: Place, plan: dict[str, Any], encoder: Encoder, dtype: torch.dtype, digest: str) -> None:
        self._store, self._plan, self._encoder, self._dtype, self._digest = store, plan, encoder, dtype, digest
        # It needs its own reader: sequences are looked up while another thread reads the next part.
        self._reader = PartReader(store, plan)
        self._cached: OrderedDict[int, RowBlock] = OrderedDict()
        self._bytes = 0
        self._mapped = plan["compression"] == "none" and TORCH_DTYPES[plan["dtype"]] == dtype
        self._valid: dict[Part, bool] = {}

    def written(self, part: Part) -> None:
        """Remember that this process has just written a part's chunk, so that it is not checked before rows are
        copied.
        """
        self._valid[part] = True

    def rows_of(self, part: Part, inputs: PartInput, numbers: IntArray) -> dict[int, RowBlock]:
        """The rows of these sequences, by the number of the first example of each.

        Args:
            part, inputs: the part that is computed; sequences that it owns and that are not cached are encoded now.
        """
        found = {number: self._cached[number] for number in numbers.tolist() if number in self._cached}
        missing: dict[Part, set[int]] = {}
        for number in numbers.tolist():
            if number not in found:
                owner = self._reader.owner(number)
                if owner != part and (stored := self._stored(number, owner.split)) is not None:
                    found[number] = stored
                else:
                    missing.setdefault(owner, set()).add(number)
        for owner, wanted in missing.items():
            found |= self._encoded(inputs if owner == part else self._reader.read(owner), wanted)
        for number, rows in found.items():
            if number not in self._cached:
                self._bytes += rows.nbytes
            self._cached[number] = rows
            self._cached.move_to_end(number)
        while self._bytes > CACHED_BYTES:
            self._bytes -= self._cached.popitem(last=False)[1].nbytes
        return found

    def _stored(self, number: int, split: str) -> RowBlock | None:
        """A sequence's rows, copied from chunks into the CPU's memory; None if a chunk is unfinished or damaged, or
        cannot be mapped.
        """
        if not self._mapped or not isinstance(self._store, Path):
            return None
        layout = split_layout(self._plan, split)
        start, stop = self._reader.rows_of(number)
        pieces = []
        for chunk in range(start // layout.rows_per_chunk, (stop - 1) // layout.rows_per_chunk + 1):
            if not self._is_valid(Part(split, chunk)):
                return None
            low, high = layout.chunk_rows(chunk)
            inside = slice(max(start, low) - low, min(stop, high) - low)
            # Map the chunk anew each time: pages of a map that stays open would stay in this process's memory.
            maps = [map_chunk(chunk_path(self._store, split, chunk, array.name), array) for array in layout.arrays]
            pieces.append([found[:, inside].copy() for found in maps])
        states, *scales = [torch.from_numpy(np.concatenate(each, axis=1)) for each in zip(*pieces, strict=True)]
        return RowBlock(states.view(self._dtype), *scales)

    def _is_valid(self, part: Part) -> bool:
        """Whether a part is finished and undamaged; its bytes are checked once, to copy no damage."""
        record = part_path(self._store, part.split, part.chunk)
        if not record.is_file():
            return False  # not remembered: another process may be writing it
        if part not in self._valid:
            layout = split_layout(self._plan, part.split)
            places = {array: chunk_path(self._store, part.split, part.chunk, array.name) for array in layout.arrays}
            try:
                recorded = read_json(record)
                sums = recorded["crc32c"]
                faults = [chunk_fault(path, array, "none", sums[array.name]) for array, path in places.items()]
                self._valid[part] = recorded["plan"] == self._digest and not any(faults)
            except (OSError, StoreError, LookupError, TypeError):
                self._valid[part] = False
        return self._valid[part]

    def _encoded(self, owner: PartInput, wanted: set[int]) -> dict[int, RowBlock]:
        """The wanted sequences' rows; the owner's batches that hold them are run whole, to get the same bytes."""
        found = {}
        for batch in owner.batches(owner.owned(), Batching.of(self._plan), self._encoder.pad_id):
            numbers = (batch.examples + owner.first_number).tolist()
            if wanted.isdisjoint(numbers):
                continue
            block, ends = self._all_rows(owner, batch)
            for at, number in enumerate(numbers):
                if number in wanted:
                    # A copy: a view would keep the whole batch in memory.
                    found[number] = block.part(slice(ends[at], ends[at + 1])).clone()
        return found

    def _all_rows(self, owner: PartInput, batch: PaddedBatch) -> tuple[RowBlock, IntArray]:
        """All rows of a batch's examples, zeros where masked, and each example's offsets into them."""
        states = forward(self._encoder, batch)
        picked, ends = flat_rows(owner.rows.row_offsets, batch.examples)
        batch_index = np.repeat(np.arange(len(batch.examples)), np.diff(ends))
        unmasked = np.flatnonzero(owner.rows.mask[picked])
        target = sent_to(torch.from_numpy(unmasked), self._encoder.device)
        shape, device = (len(self._plan["layers"]), len(picked)), self._encoder.device
        block = RowBlock(
            torch.zeros(*shape, self._plan["hidden"], dtype=self._dtype, device=device),
            torch.zeros(shape, device=device) if self._dtype == torch.int8 else None,
        )
        layers = self._plan["layers"]
        gather = gather_of(owner, batch, picked[unmasked], batch_index[unmasked])
        for position, rows in batch_rows(states, layers, gather):
            values, scales = rounded(rows, self._dtype)
            block.states[position, target] = values
            if block.scales is not None and scales is not None:
                block.scales[position, target] = scales
        return block, ends
