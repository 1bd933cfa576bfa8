"""Reading a store: states, offsets, examples, ragged batches of chosen examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fusionkit.errors import StoppedError, UsageError, first_line, unknown_name
from fusionkit.io.places import Place, place_errors, place_of, read_bytes, unreadable
from fusionkit.ragged import IntArray, Ragged, chosen_examples, flat_rows, resolved_index
from fusionkit.specs import MASKED, digest_of
from fusionkit.store.cache import default_cache
from fusionkit.store.chunk_access import ChunkReader, FetchedChunks, MappedChunks, PlannedChunks
from fusionkit.store.layout import (
    NOT_MASKED,
    PAIRS,
    StatesLayout,
    checked_offsets,
    damaged_store,
    examples_path,
    read_small,
)
from fusionkit.store.manifest import agreed_layout, is_two, read_manifest, read_plan, store_digest
from fusionkit.store.presence import is_complete, is_store, states_path
from fusionkit.store.states import HiddenStates


class Split:
    """One split of a store.

    Attributes:
        hidden_states: ``[rows, layers, hidden]``. name: ``train``, ``validation`` or ``test``.
        sides: sequences per example: 2 where pairs of texts are stored as two, else 1.
    """

    def __init__(self, store: Place, name: str, states: HiddenStates, rows: str, sides: int = 1) -> None:
        self.name = name
        self.sides = sides
        self.hidden_states = states
        self._store, self._rows = store, rows
        self._columns: dict[str, pd.Series[Any]] = {}  # those read alone

    def __len__(self) -> int:
        return self.sequences if self.sides == 1 else len(self.pairs)

    @property
    def sequences(self) -> int:
        """The number of sequences: one for each example, or one for each distinct text of pairs that are stored as
        two.
        """
        return len(self.row_offsets) - 1

    @property
    def shape(self) -> tuple[int]:
        """``(examples,)``; scikit-learn treats a split as a column of examples."""
        return (len(self),)

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Tensor: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any] | tuple[Any, ...]) -> Ragged: ...

    def __getitem__(self, key: Any) -> Tensor | Ragged:
        """One example's states ``[its rows, layers, hidden]``; a :class:`Ragged` for a slice, mask or index array.

        Raises:
            IndexError: there is no such example.
        """
        examples = chosen_examples(key, len(self))
        return self.take(examples) if examples.ndim else self.take(examples[None]).hidden_states

    @cached_property
    def pairs(self) -> IntArray:
        """int64 ``[examples, sides]``: the sequences of each example."""
        if self.sides == 1:
            return np.arange(self.sequences, dtype=np.int64)[:, None]
        found = read_small(self._store, self.name, PAIRS)
        # Zarr reads a missing chunk as zeros; then some sequence would be in no pair.
        if not np.array_equal(np.unique(found), np.arange(self.sequences)):
            raise damaged_store(self._store, f"{self.name}: the pairs are not of the {self.sequences} sequences")
        return found

    @cached_property
    def row_offsets(self) -> IntArray:
        """int64 ``[sequences + 1]``, half-open; an example is one sequence unless :attr:`sides` is 2."""
        offsets = read_small(self._store, self.name, "row_offsets")
        path = states_path(self._store) / self.name / "row_offsets"
        return checked_offsets(offsets, len(self.hidden_states), path)

    @cached_property
    def row_mask(self) -> NDArray[np.bool_]:
        """bool ``[rows]``: False where a word has no state of its own."""
        found = read_small(self._store, self.name, "row_mask")
        if (found.shape, found.dtype) != ((len(self.hidden_states),), np.dtype(bool)):
            raise damaged_store(self._store, f"row_mask is {found.dtype} of shape {found.shape}")
        return found

    @cached_property
    def token_offsets(self) -> IntArray:
        """int64 ``[sequences + 1]`` into the sub-tokens, whatever the rows are."""
        offsets = read_small(self._store, self.name, "token_offsets")
        if len(offsets) != self.sequences + 1:
            raise damaged_store(self._store, f"{len(offsets)} token_offsets, {self.sequences} sequences")
        path = states_path(self._store) / self.name / "token_offsets"
        return checked_offsets(offsets, len(self.word_index), path)

    @cached_property
    def word_index(self) -> NDArray[np.int32]:
        """int32 ``[tokens]``: the word of each sub-token, -1 for special tokens."""
        return read_small(self._store, self.name, "word_index")

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        """int32 ``[tokens]``: the tokenizer's ids of all sub-tokens."""
        return read_small(self._store, self.name, "token_ids")

    @cached_property
    def segments(self) -> NDArray[np.uint8]:
        """uint8 ``[tokens]``: the tokenizer's token types; BERT's are 1 in the second text of a pair."""
        return read_small(self._store, self.name, "segments")

    @cached_property
    def masked_ids(self) -> NDArray[np.int32]:
        """int32 ``[rows]``: the original id of each masked sub-token. UsageError: the rows are not masked-tokens."""
        places = self.masked_tokens
        found: NDArray[np.int32] = read_small(self._store, self.name, "mlm_labels")[places]
        return found

    @cached_property
    def masked_tokens(self) -> IntArray:
        """int64 ``[rows]``: the place of each masked sub-token among all sub-tokens; errors as :attr:`masked_ids`."""
        if self._rows != MASKED:
            raise UsageError(
                f"rows of {self._rows} are of no masked sub-tokens", expected="a store that `encode --task mlm` made"
            )
        found = np.flatnonzero(read_small(self._store, self.name, "mlm_labels") != NOT_MASKED)
        if len(found) != len(self.hidden_states):  # Zarr reads a missing chunk as zeros
            raise damaged_store(self._store, f"{len(found)} mlm_labels, {len(self.hidden_states)} rows")
        return found

    @cached_property
    def examples(self) -> pd.DataFrame:
        """The source's columns, one line per example."""
        return self._read_examples()

    @cached_property
    def column_names(self) -> list[str]:
        """The names of the source's columns; of a local store no values are read. Errors as :attr:`examples`."""
        if self._is_read_whole:
            return [str(name) for name in self.examples.columns]
        import pyarrow.parquet as pq  # as late as pandas imports it

        with self._examples_file() as file:
            known = pq.read_metadata(file)
            names = [str(name) for name in known.schema.to_arrow_schema().names]
        self._check_examples(known.num_rows)
        return names

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Some columns of :attr:`examples`, with the same errors; names of no column are left out.

        Of a local store only these columns are read, each once: texts may be far larger than labels.
        """
        known = self.column_names
        wanted = [name for name in dict.fromkeys(names) if name in known]
        if self._is_read_whole:
            return self.examples[wanted]
        if missing := [name for name in wanted if name not in self._columns]:
            found = self._read_examples(missing)
            self._columns |= {name: found[name] for name in missing}
        if not wanted:
            return pd.DataFrame(index=pd.RangeIndex(len(self)))
        return pd.DataFrame({name: self._columns[name] for name in wanted}, copy=False)

    @property
    def _is_read_whole(self) -> bool:
        """Whether all columns are in memory already, or come together: a file elsewhere is fetched whole."""
        return "examples" in self.__dict__ or not isinstance(self._store, Path)

    def _read_examples(self, names: list[str] | None = None) -> pd.DataFrame:
        """These columns of the examples, or all."""
        with self._examples_file() as file:
            found = pd.read_parquet(file, columns=names)
        self._check_examples(len(found))
        return found

    @contextmanager
    def _examples_file(self) -> Iterator[IO[bytes]]:
        """What the examples are read from; an error of reading it says that the file is damaged, or why it cannot be
        read.
        """
        path = examples_path(self._store, self.name)
        try:
            # Not by its name, which Arrow would read as an address where it is like exp:1/store.
            file = path.open("rb") if isinstance(path, Path) else BytesIO(read_bytes(path))
        except StoppedError:
            raise
        except Exception as error:  # the libraries of remote places raise their own errors
            raise damaged_store(path, error) from error
        try:
            with file:
                yield file
        except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
            raise (unreadable(path, error) or damaged_store(path, first_line(error))) from error

    def _check_examples(self, count: int) -> None:
        if count != len(self):
            raise damaged_store(examples_path(self._store, self.name), f"{count} examples, not {len(self)}")

    def take(self, indices: ArrayLike, layers: Sequence[int] | None = None) -> Ragged:
        """The states of some examples, in the order given.

        Pairs that are stored as two sequences give both of them in turn: ``taken[2 * k]`` is the first text
        of the k-th example, ``taken[2 * k + 1]`` the second.

        Args:
            indices: example numbers or a mask. layers: positions, as
                :mod:`fusionkit.store.layer_positions` defines them; None is all.

        Raises:
            UsageError: the split has no such example.
        """
        examples = self._numbers(indices, len(self), "example")
        return self.take_sequences(self.pairs[examples].ravel(), layers)

    def take_sequences(self, indices: ArrayLike, layers: Sequence[int] | None = None) -> Ragged:
        """The states of some sequences, by sequence number; otherwise as :meth:`take`."""
        rows, offsets = flat_rows(self.row_offsets, self._numbers(indices, self.sequences, "sequence"))
        return Ragged(self.hidden_states.gather(rows, layers), offsets, self.row_mask[rows])

    def _numbers(self, indices: ArrayLike, length: int, what: str) -> IntArray:
        try:
            return resolved_index(indices, length)
        except IndexError as error:
            raise UsageError(
                f"no such {what} in {self.name}", expected=f"0 … {length - 1}", received=str(error)
            ) from error


class Store:
    """A complete store: ``store["train"]`` gives its splits.

    Attributes:
        path: its folder or address. manifest: everything known about it. layers: stored layer indices.
        rows: the kind of rows. digest: the short name of its identity.
        sides: sequences per example: 2 where pairs of texts are stored as two, else 1.
        is_planned: it has token ids and examples, but no states yet (:func:`open_planned`).
    """

    def __init__(self, path: Place, is_planned: bool = False) -> None:
        self.path, self.is_planned = path, is_planned
        with place_errors(path):
            self.manifest = read_plan(path) if is_planned else read_manifest(path)
        self.rows: str = self.manifest["rows"]
        self.layers: tuple[int, ...] = tuple(self.manifest["layers"])
        self.hidden: int = self.manifest["hidden"]
        self.digest = store_digest(self.manifest)
        self.sides = 2 if is_two(self.manifest) else 1
        self._splits: dict[str, Split] = {}

    @property
    def name(self) -> str:
        """The name of the store in reports: the source's name."""
        return str(self.manifest["source"])

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest["splits"])

    @property
    def reads(self) -> str:
        """How chunks are read: by memory map, or fetched into the disk cache."""
        if self._is_mapped:
            return "memory map"
        cache = default_cache()
        return f"whole chunks, kept in a cache of {cache.limit / 1e9:g} GB in {cache.folder}"

    def __getitem__(self, split: str) -> Split:
        if split not in self.manifest["splits"]:
            raise unknown_name("split", split, self.splits)
        if split not in self._splits:
            layout = agreed_layout(self.path, self.manifest, split)
            states = HiddenStates(self._chunks(split, layout), layout)
            self._splits[split] = Split(self.path, split, states, self.rows, self.sides)
        return self._splits[split]

    @property
    def _is_mapped(self) -> bool:
        """Whether chunk files are raw arrays on this machine's disk."""
        return isinstance(self.path, Path) and self.manifest["compression"] == "none"

    def _chunks(self, split: str, layout: StatesLayout) -> ChunkReader:
        if self.is_planned:
            return PlannedChunks(self.path)
        if isinstance(self.path, Path) and self._is_mapped:
            return MappedChunks(self.path, split, layout, self.digest)
        # By address, as the checksums of another store may be chosen to be equal; by checksums, as a new store may be
        # at the same address.
        recorded = self.manifest["splits"][split]["chunks"]
        place = self.path.resolve() if isinstance(self.path, Path) else self.path
        name = digest_of([str(place), self.manifest["identity"], split, recorded])
        return FetchedChunks(self.path, split, layout, name, default_cache(), recorded)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, splits={list(self.splits)}, rows={self.rows!r}, layers={self.layers})"


def open_store(path: str | Place) -> Store:
    """Open a complete store.

    Args:
        path: its folder, or its address on object storage (``s3://bucket/my.store``).

    Raises:
        StoreError: it does not exist, is unfinished, damaged, or of another format.

    Example:
        >>> store = open_store("conll.store")           # doctest: +SKIP
        >>> batch = store["train"].take([0, 5, 7])      # doctest: +SKIP
        >>> batch.hidden_states.shape                   # rows, layers, hidden  # doctest: +SKIP
        torch.Size([41, 7, 384])
    """
    return Store(place_of(path))


def open_planned(path: str | Place) -> Store:
    """Open a complete store, or one that is only planned, as ``encode --parts 0/N`` leaves it: that one has token ids
    and examples, but its states cannot be read.

    Raises:
        StoreError: as :func:`open_store`, except that an unfinished store is allowed.
    """
    place = place_of(path)
    return Store(place, is_planned=not is_complete(place) and is_store(place))
