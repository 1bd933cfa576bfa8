"""Splits of several stores joined into one: one numbering of all rows, one list of all examples.

    row r  ↦  row r − b_k of split k,   b_k ≤ r < b_(k+1)

Symbols: ``b_k`` the number of rows in all splits before k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.origin import joined
from fusionkit.dataset.split import ChunkedStates, States, TaskSplit
from fusionkit.ragged import IntArray, offsets_of
from fusionkit.store import Store
from fusionkit.store.layer_positions import positions_of


class ConcatenatedStates:
    """The states of several splits, one after the other.

    Args:
        splits: the states of each split, all of one width; dtypes may differ.
        positions: for each split, the positions of the shared layers on its own layer axis.

    Attributes:
        parts: the states of each split. shape: ``[rows, shared layers, hidden]``. starts: int64 ``[splits + 1]``, each
            split's first row.
    """

    def __init__(self, splits: Sequence[States], positions: Sequence[Sequence[int]]) -> None:
        self.parts = tuple(splits)
        self._positions = tuple(map(tuple, positions))
        self.starts = offsets_of(np.array([split.shape[0] for split in splits], dtype=np.int64))
        self.shape = (int(self.starts[-1]), len(self._positions[0]), splits[0].shape[2])

    def gather(self, rows: IntArray, layers: Sequence[int] | None = None) -> Tensor:
        """Chosen rows of chosen layers as a tensor ``[len(rows), layers, hidden]``; IndexError for a missing row.

        Rows of one dtype keep it; rows of several are promoted to the narrowest dtype that holds them all. The memory
        is layer-major, as in the store: the result is a transposed view.

        Args:
            rows: int64, 0 or more, any order. layers: positions among the shared layers; None is all.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.shape[0]):
            raise IndexError(f"rows {rows.min()} … {rows.max()} of {self.shape[0]}")
        picked = range(self.shape[1]) if layers is None else layers
        split_of = np.searchsorted(self.starts, rows, side="right") - 1
        touched = np.unique(split_of).tolist() or [0]
        places = [np.flatnonzero(split_of == k) for k in touched]
        found: list[Tensor] = [
            self.parts[k].gather(rows[at] - self.starts[k], [self._positions[k][layer] for layer in picked])
            for k, at in zip(touched, places, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        dtype = reduce(torch.promote_types, (states.dtype for states in found))
        out = torch.empty(len(picked), len(rows), self.shape[2], dtype=dtype)  # [layers, rows, hidden]
        for at, states in zip(places, found, strict=True):
            out[:, torch.from_numpy(at)] = states.transpose(0, 1).to(dtype)
        return out.transpose(0, 1)  # [rows, layers, hidden]

    def chunk_of(self, rows: IntArray) -> IntArray:
        """The chunk number of each row; a split's chunks are numbered after those of the splits before it."""
        found, before = np.zeros(len(rows), dtype=np.int64), 0
        split_of = np.searchsorted(self.starts, rows, side="right") - 1
        for k, split in enumerate(self._chunked()):
            at = split_of == k
            found[at] = split.chunk_of(rows[at] - self.starts[k]) + before
            before += int(split.chunk_of(np.array([split.shape[0] - 1]))[0]) + 1
        return found

    def load(
        self, rows: IntArray, layers: Sequence[int], reuse: ConcatenatedStates | None = None
    ) -> ConcatenatedStates:
        """Read these rows (ascending, without repeats) into memory; the result keeps the numbering of all rows."""
        bounds = np.searchsorted(rows, self.starts)
        reused = [None] * len(self.parts) if reuse is None else reuse.parts
        return ConcatenatedStates(
            [
                split.load(rows[a:b] - start, [own[layer] for layer in layers], old)
                for split, own, start, a, b, old in zip(
                    self._chunked(), self._positions, self.starts, bounds, bounds[1:], reused, strict=False
                )
            ],
            self._positions,
        )

    def _chunked(self) -> list[ChunkedStates]:
        assert all(isinstance(split, ChunkedStates) for split in self.parts)
        return [split for split in self.parts if isinstance(split, ChunkedStates)]


def with_layers(split: TaskSplit, store: Store, layers: tuple[int, ...]) -> TaskSplit:
    """A split of a store with only these of the store's layers."""
    if store.layers == layers:
        return split
    return replace(split, states=ConcatenatedStates([split.states], [positions_of(layers, store.layers)]))


def join_splits(parts: Sequence[tuple[str, TaskSplit, Sequence[int]]]) -> TaskSplit:
    """One split of all examples, in the order of the parts.

    Args:
        parts: a prefix for the ids (``de`` makes ``de/12``), the split, and the positions of the shared layers in its
            store. All parts have the same task and the same number of sequences per example.
    """
    names, splits, positions = zip(*parts, strict=True)
    states = ConcatenatedStates([split.states for split in splits], positions)
    all_read = all(split.read is None for split in splits)
    masks = [] if all_read else [np.ones(len(each.rows), bool) if each.read is None else each.read for each in splits]
    words = splits[0].kept is not None
    return TaskSplit(
        states=states,
        rows=np.concatenate([split.rows + start for split, start in zip(splits, states.starts[:-1], strict=True)]),
        offsets=_joined_offsets([split.offsets for split in splits]),
        targets=np.concatenate([split.targets for split in splits]),
        gold=[gold for split in splits for gold in split.gold],
        ids=[f"{name}/{own}" for name, split in zip(names, splits, strict=True) for own in split.ids],
        kept=np.concatenate([split.kept for split in splits]) if words else None,
        word_offsets=_joined_offsets([split.word_offsets for split in splits]) if words else None,
        read=None if all_read else np.concatenate(masks),
        sides=splits[0].sides,
        origin=joined([split.origin for split in splits]),
    )


def _joined_offsets(pieces: Sequence[IntArray]) -> IntArray:
    return offsets_of(np.concatenate([np.diff(offsets) for offsets in pieces]))
