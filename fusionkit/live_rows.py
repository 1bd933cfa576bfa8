"""A batch's live rows for trained heads: states and fusions that several heads share are computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.alignment import Rows
from fusionkit.encode.batches import PaddedBatch, PartInput, batch_rows, gather_of
from fusionkit.fit.model.checkpoint import TrainedRun
from fusionkit.ragged import IntArray, flat_rows, offsets_of
from fusionkit.specs import ONE_TOKEN
from fusionkit.store.layer_positions import positions_of


@dataclass(frozen=True, eq=False)
class Reader:
    """A run with the name of its head, and how it reads a batch's rows.

    Attributes:
        reading: the rows that the head reads: ``all``, the ``words`` (first sub-tokens), ``cls`` or ``last``.
        shares: True where another run has the same fusion.
    """

    name: str
    run: TrainedRun
    reading: str
    shares: bool

    @property
    def narrows(self) -> bool:
        """True if only the rows that the head reads are fused: no neighbouring row and no other head needs the rest."""
        return not (self.shares or self.run.sees_examples)


def readers_of(runs: Iterable[tuple[str, TrainedRun]]) -> list[Reader]:
    """A reader for each named run, ordered so that runs that read the same states are adjacent."""
    named = list(runs)
    fusions = [run.model.fusion for _, run in named]
    readers = [Reader(name, run, _reading(run), fusions.count(run.model.fusion) > 1) for name, run in named]
    return sorted(readers, key=lambda one: (one.run.rows, one.run.layers, one.reading if one.narrows else "all"))


def _reading(run: TrainedRun) -> str:
    if run.rows != "tokens":
        return "all"
    return "words" if run.of_words else str(run.spec.pool) if run.spec.pool in ONE_TOKEN else "all"


@dataclass(eq=False)
class SharedRows:
    """A batch's rows of one kind, for all runs over it.

    Attributes:
        states: float32 ``[n, layers, hidden]``. layers: those in ``states``, in order. picked: int64 ``[n]``, the rows'
            numbers among all rows of the kind. offsets: int64 ``[sequences + 1]`` into the ``n`` rows. rows: all rows
            of the kind. words: the rows of words of all examples, None where the input is not words.
        read: a cache, by reading: the indices of the rows read, int64, None for all of them; and the offsets among
            these rows.
        block: the states of the last layers and reading, with both. fused: the output of the last fusion that several
            heads share, with the fusion. Only the last ones are kept, because heads may read many choices of layers.
    """

    states: Tensor
    layers: list[int]
    picked: IntArray
    offsets: IntArray
    rows: Rows
    words: Rows | None
    read: dict[str, tuple[Tensor | None, IntArray]] = field(default_factory=dict)
    block: tuple[Any, Tensor] | None = None
    fused: tuple[Any, Tensor] | None = None

    def scores(self, reader: Reader) -> tuple[Tensor, IntArray]:
        """A head's scores, and the examples' offsets among the rows that it read.

        The rows and their order are those that the run reads from a store.
        """
        model, offsets = reader.run.model, self.offsets
        read, read_offsets = self._reads(reader.reading)
        if reader.narrows:
            states = self._of_layers(reader.run.layers, reader.reading, read)
            read, offsets = None, read_offsets
        else:
            states = self._of_layers(reader.run.layers, "all", None)
        bounds = torch.from_numpy(offsets).to(states.device)
        if not reader.shares:
            return model(states, bounds, read), read_offsets
        if self.fused is None or self.fused[0] is not model.fusion:
            self.fused = model.fusion, model.fusion(states, bounds)
        return model.read_out(self.fused[1], bounds, read), read_offsets

    def _reads(self, reading: str) -> tuple[Tensor | None, IntArray]:
        if reading not in self.read:
            wanted = self.rows.row_offsets[1:] - 1 if reading == "last" else self.rows.row_offsets[:-1]
            if reading == "words":
                assert self.words is not None
                wanted = self.words.first[self.words.mask]
            mask = None if reading == "all" else np.isin(self.picked, wanted)
            self.read[reading] = (
                None if mask is None else torch.from_numpy(mask.nonzero()[0]).to(self.states.device),
                self.offsets if mask is None else offsets_of(mask.astype(np.int64))[self.offsets],
            )
        return self.read[reading]

    def _of_layers(self, layers: tuple[int, ...], reading: str, read: Tensor | None) -> Tensor:
        """``[rows, layers, hidden]``: the states of these layers and of the rows read."""
        if self.block is None or self.block[0] != (layers, reading):
            states = self.states if read is None else self.states[read]
            if len(layers) < len(self.layers):
                states = states[:, list(positions_of(layers, self.layers))]
            self.block = (layers, reading), states
        return self.block[1]


def shared_rows(
    states: tuple[Tensor, ...], layers: list[int], part: PartInput, batch: PaddedBatch, rows: Rows, words: Rows | None
) -> SharedRows:
    """A batch's rows of one kind, with these layers."""
    at, offsets = flat_rows(rows.row_offsets, batch.examples)
    kept = rows.mask[at]
    line = np.repeat(np.arange(len(batch.examples)), np.diff(offsets))[kept]
    given = dataclasses.replace(part, rows=rows)
    gather = gather_of(given, batch, at[kept], line)
    found = [each.float() for _, each in batch_rows(states, layers, gather)]
    return SharedRows(torch.stack(found, 1), layers, at[kept], offsets_of(kept.astype(np.int64))[offsets], rows, words)


def in_order(found: list[SharedRows], order: IntArray) -> SharedRows:
    """Join the rows of a group's batches into one, with the sequences in this order."""
    first = found[0]
    if len(found) == 1 and np.array_equal(order, np.arange(len(first.offsets) - 1)):
        return first
    at, offsets = flat_rows(offsets_of(np.concatenate([np.diff(each.offsets) for each in found])), order)
    states = torch.cat([each.states for each in found])[torch.from_numpy(at).to(first.states.device)]
    picked = np.concatenate([each.picked for each in found])[at]
    return SharedRows(states, first.layers, picked, offsets, first.rows, first.words)
