"""One chunk's states in memory: mapped where they lie, or decoded through Zarr into the disk cache and mapped there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionkit.errors import StoreError
from fusionkit.places import Place, place_errors
from fusionkit.store.cache import ChunkCache
from fusionkit.store.chunks import map_chunk
from fusionkit.store.layout import ChunkedArray, StatesLayout, chunk_path, damaged, open_array

AHEAD = 4  # chunks fetched before they are asked for


class Block(NamedTuple):
    """One chunk, read-only.

    Attributes:
        states: ``[layers, rows_per_chunk, hidden]``. scales: float32 ``[layers, rows_per_chunk]`` of int8 states.
    """

    states: NDArray[Any]
    scales: NDArray[Any] | None


class Blocks(Protocol):
    """A way of reading chunks."""

    def read(self, chunk: int) -> Block:
        """One chunk. Raises StoreError: it is missing or damaged."""

    def announce(self, chunks: Sequence[int]) -> None:
        """These chunks will be read next, in this order."""


class MappedBlocks:
    """Uncompressed local chunks: their files are mapped."""

    def __init__(self, store: Path, split: str, layout: StatesLayout) -> None:
        self._place = store, split
        self._layout = layout
        self._held: list[Block | None] = [None] * layout.chunks

    def read(self, chunk: int) -> Block:
        found = self._held[chunk]
        if found is None:
            paths = [chunk_path(*self._place, chunk, array.name) for array in self._layout.arrays]
            maps = [map_chunk(path, array) for path, array in zip(paths, self._layout.arrays, strict=True)]
            found = self._held[chunk] = Block(maps[0], maps[1] if len(maps) > 1 else None)
        return found

    def announce(self, chunks: Sequence[int]) -> None:
        return


class FetchedBlocks:
    """Chunks that are remote or compressed: Zarr fetches, checks and decodes them, some ahead of need.

    Args:
        name: tells this split of this very store from all others: what cached chunks are known by.
    """

    def __init__(self, store: Place, split: str, layout: StatesLayout, name: str, cache: ChunkCache) -> None:
        self._layout = layout
        self._arrays = {array.name: open_array(store, split, array.name) for array in layout.arrays}
        self._store, self._split, self._name, self._cache = store, split, name, cache
        self._order: list[int] = []
        self._held: OrderedDict[int, Future[Block]] = OrderedDict()
        # Maps into the cache are cheap; blocks that no cache holds are not.
        self._room = max(2 * AHEAD, cache.limit // layout.chunk_bytes)
        self._pool: ThreadPoolExecutor | None = None

    def read(self, chunk: int) -> Block:
        at = self._order.index(chunk) if chunk in self._order else -1
        coming = self._order[at + 1 : at + 1 + AHEAD] if at >= 0 else range(chunk + 1, chunk + 1 + AHEAD)
        wanted = self._begin(chunk)
        for later in coming:
            if later < self._layout.chunks:
                self._begin(later)
        self._held.move_to_end(chunk)
        while len(self._held) > self._room:
            self._held.popitem(last=False)
        try:
            return wanted.result()
        except BaseException:
            self._held.pop(chunk, None)  # asked for again, it is fetched again
            raise

    def announce(self, chunks: Sequence[int]) -> None:
        self._order = list(chunks)

    def _begin(self, chunk: int) -> Future[Block]:
        found = self._held.get(chunk)
        if found is None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(AHEAD + 1, thread_name_prefix="fetch")
            found = self._held[chunk] = self._pool.submit(self._fetch, chunk)
        return found

    def _fetch(self, chunk: int) -> Block:
        arrays = [self._one(array, chunk) for array in self._layout.arrays]
        return Block(arrays[0], arrays[1] if len(arrays) > 1 else None)

    def _one(self, array: ChunkedArray, chunk: int) -> NDArray[Any]:
        return self._cache.get(f"{self._name}-{array.name}-{chunk}", array, lambda: self._decoded(array, chunk))

    def _decoded(self, array: ChunkedArray, chunk: int) -> NDArray[Any]:
        """``[layers, rows, …]``, the last chunk's rows without its padding."""
        place = chunk_path(self._store, self._split, chunk, array.name)
        start, stop = self._layout.chunk_rows(chunk)
        try:
            with place_errors(place):
                if not place.is_file():  # to Zarr a missing chunk is a chunk of zeros
                    remedy = "see `fusionkit verify`, then encode again"
                    raise StoreError(f"chunk {place} is missing", remedy=remedy)
                return np.swapaxes(np.asarray(self._arrays[array.name][start:stop]), 0, 1)
        except StoreError:
            raise
        except Exception as error:  # zarr and its codecs raise ValueError, RuntimeError and others
            raise damaged(place, error) from error
