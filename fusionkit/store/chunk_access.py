"""Reading chunks: local raw files are mapped; others are fetched and decoded into the disk cache and mapped there."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from fusionkit.errors import StoreError
from fusionkit.io.places import Place, place_errors
from fusionkit.store.cache import ChunkCache
from fusionkit.store.chunks import map_chunk, read_chunk, read_rows
from fusionkit.store.layout import ChunkedArray, StatesLayout, chunk_path
from fusionkit.store.manifest import checked, store_digest
from fusionkit.store.presence import MANIFEST

AHEAD = 4  # chunks fetched ahead of use
MOST_MAPPED = 5_000  # chunks of a split; Linux refuses a process more than 65,530 maps


class ChunkStates(NamedTuple):
    """One chunk, read-only.

    Attributes:
        states: ``[layers, rows_per_chunk, hidden]``. scales: float32 ``[layers, rows_per_chunk]`` of int8 states.
    """

    states: NDArray[Any]
    scales: NDArray[Any] | None = None


class MappedChunks:
    """Uncompressed local chunks: their files are mapped.

    Args:
        digest: of the store that was opened. A store with another digest that replaces it is refused; None refuses
            nothing.
    """

    def __init__(self, store: Path, split: str, layout: StatesLayout, digest: str | None = None) -> None:
        self._place = store, split
        self._layout = layout
        self._manifest, self._digest = store / MANIFEST, digest
        self._stamp: tuple[int, int] | None = None  # of the manifest that was last seen to have this digest
        self._held: dict[int, ChunkStates] = {}

    def __reduce__(self) -> tuple[type[MappedChunks], tuple[Path, str, StatesLayout, str | None]]:
        # Pickling a map would copy its bytes, so another process maps the files itself.
        return MappedChunks, (*self._place, self._layout, self._digest)

    def read(self, chunk: int) -> ChunkStates:
        """One chunk. Raises StoreError: it is missing or damaged, or the store was replaced."""
        found = self._held.get(chunk)
        if found is None:
            if len(self._held) >= MOST_MAPPED:
                self._held.clear()
            paths = [chunk_path(*self._place, chunk, array.name) for array in self._layout.arrays]
            try:
                maps = [map_chunk(path, array) for path, array in zip(paths, self._layout.arrays, strict=True)]
            finally:
                self._refuse_replaced()
            found = self._held[chunk] = ChunkStates(*maps)
        return found

    def copy(self, chunk: int, array: int, layer: int, start: int, out: NDArray[Any]) -> None:
        """Copy rows of one layer of a chunk into ``out``, from row ``start`` of the chunk on: one read, no map.

        Args:
            array: the array's index in the layout. layer: the layer's position. out: ``[rows, …]``, contiguous, of the
                array's dtype.

        Raises:
            StoreError: the chunk is missing or damaged, or the store was replaced.
        """
        kind = self._layout.arrays[array]
        try:
            read_rows(chunk_path(*self._place, chunk, kind.name), kind, layer, start, out)
        finally:
            self._refuse_replaced()

    def _refuse_replaced(self) -> None:
        """Raise StoreError if another store has replaced the opened one.

        Call it after a chunk's file was opened: before that, the store could be replaced in between. A repair may write
        the manifest anew, so a changed file is read.
        """
        if self._digest is None:
            return
        found: str | None = None
        with contextlib.suppress(FileNotFoundError):
            facts = self._manifest.stat()
            stamp = facts.st_size, facts.st_mtime_ns
            if stamp == self._stamp or (found := store_digest(checked(self._manifest))) == self._digest:
                self._stamp = stamp
                return
        raise StoreError(
            f"{self._place[0]} is not the store that was opened",
            expected=f"the store with digest {self._digest}",
            received="no store" if found is None else f"one with digest {found}",
            remedy="open the store again",
        )

    def announce(self, chunks: Sequence[int]) -> None:
        """These chunks will be read next, in this order."""


class PlannedChunks:
    """The chunks of a store that is only planned: none of them can be read."""

    def __init__(self, store: Place) -> None:
        self._store = store

    def read(self, chunk: int) -> ChunkStates:
        """Raise StoreError: there are no states yet."""
        raise StoreError(
            f"the store {self._store} is not finished",
            expected="states",
            received="a plan",
            remedy="run the same `fusionkit encode` without --parts: it encodes what is missing",
        )

    def copy(self, chunk: int, array: int, layer: int, start: int, out: NDArray[Any]) -> None:
        """As :meth:`read`."""
        self.read(chunk)

    def announce(self, chunks: Sequence[int]) -> None:
        """Nothing will be read."""


class FetchedChunks:
    """Chunks that are remote or compressed: fetched whole, checked and decoded, some of them ahead of use.

    Args:
        name: unique to this split and store; the names of cached chunks begin with it.
        recorded: by array, the checksum of each chunk's bytes in its file.
    """

    def __init__(
        self,
        store: Place,
        split: str,
        layout: StatesLayout,
        name: str,
        cache: ChunkCache,
        recorded: Mapping[str, Sequence[int]],
    ) -> None:
        self._store, self._split, self._layout = store, split, layout
        self._name, self._cache, self._recorded = name, cache, recorded
        self._announced: list[int] = []
        self._last_read = -1
        # Maps of cached files use little memory; chunks that are not in the cache are whole in memory.
        self._most_kept = max(2 * AHEAD, min(MOST_MAPPED, cache.limit // layout.chunk_bytes))
        self.reset()
        _alive.add(self)

    def reset(self) -> None:
        """Drop the threads, unfinished reads and connections of a parent process, which a forked child cannot use."""
        self._store = copy.copy(self._store)  # a copied address opens its own connection
        self._kept: OrderedDict[int, Future[ChunkStates]] = OrderedDict()  # fetched or on their way; oldest use first
        self._pool = ThreadPoolExecutor(AHEAD + 1, thread_name_prefix="fetch")
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[FetchedChunks], tuple[Any, ...]]:
        # Another process has its own threads and the same cache on disk.
        given = self._store, self._split, self._layout, self._name, self._cache, self._recorded
        return FetchedChunks, given

    def read(self, chunk: int) -> ChunkStates:
        """One chunk; waits until it is fetched, and starts to fetch those that are likely to be read next.

        Raises:
            StoreError: it is missing or damaged.
        """
        with self._lock:
            kept = self._kept.get(chunk)
            if kept is not None and kept.done() and kept.exception() is not None:
                del self._kept[chunk]  # a failed chunk is fetched again when it is read again
            future = self._begin(chunk)
            for later in self._likely_next(chunk):
                self._begin(later)
            self._last_read = chunk
            self._kept.move_to_end(chunk)
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        block = future.result()
        if block.states.flags.owndata:  # no map: the cache's disk is full or read-only
            self._most_kept = 2 * AHEAD
        return block

    def copy(self, chunk: int, array: int, layer: int, start: int, out: NDArray[Any]) -> None:
        """Like :meth:`MappedChunks.copy`, from the map of the cached file."""
        found = self.read(chunk)[array]
        assert found is not None
        out[:] = found[layer, start : start + len(out)]

    def announce(self, chunks: Sequence[int]) -> None:
        """These chunks will be read next, in this order."""
        self._announced = list(chunks)

    def _likely_next(self, chunk: int) -> Sequence[int]:
        """The chunks announced after this one; without any, the following ones of a sequential read."""
        if chunk in self._announced:
            after = self._announced.index(chunk) + 1
            if announced := self._announced[after : after + AHEAD]:
                return announced
        if chunk == self._last_read + 1:
            return range(chunk + 1, min(chunk + 1 + AHEAD, self._layout.chunks))
        return []

    def _begin(self, chunk: int) -> Future[ChunkStates]:
        """Start to fetch a chunk, unless it is kept."""
        if chunk not in self._kept:
            self._kept[chunk] = self._pool.submit(self._fetch, chunk)
        return self._kept[chunk]

    def _fetch(self, chunk: int) -> ChunkStates:
        return ChunkStates(*(self._cached(array, chunk) for array in self._layout.arrays))

    def _cached(self, array: ChunkedArray, chunk: int) -> NDArray[Any]:
        place, recorded = chunk_path(self._store, self._split, chunk, array.name), self._recorded[array.name][chunk]

        def fetched() -> NDArray[Any]:
            with place_errors(place):
                return read_chunk(place, array, self._layout.compression, recorded)

        return self._cache.get(f"{self._name}-{array.name}-{chunk}", array, fetched)


ChunkReader: TypeAlias = MappedChunks | FetchedChunks | PlannedChunks

# A forked child (a DataLoader's worker) lacks the threads that fetch, and would wait for them for ever.
_alive: weakref.WeakSet[FetchedChunks] = weakref.WeakSet()


def _after_fork() -> None:
    for blocks in list(_alive):
        blocks.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
