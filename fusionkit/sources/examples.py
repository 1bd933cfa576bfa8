"""The examples of one split, read in pieces from the disk: a split is never whole in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fusionkit.errors import DataError

PIECE_EXAMPLES = 1000
PIECE_BYTES = 4 << 20
ROW_GROUP_BYTES = 8 << 20

# A piece and the index of its first example → the changed piece, with the same number of examples.
Change = Callable[[pa.RecordBatch, int], pa.RecordBatch]


def refuse_repeated(path: Path, names: Sequence[str]) -> None:
    """Raise DataError if two columns of a file have one name."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            f"{path}: two columns are called {repeated[0]!r}",
            expected="a name of its own for each column",
            received=", ".join(names),
            remedy="rename one of them",
        )


def first_of(batches: Iterable[pa.RecordBatch], count: int | None) -> Iterator[pa.RecordBatch]:
    """The first ``count`` rows of batches, or all where it is None; later batches are not read."""
    left = count
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch[:left]
        left -= batch.num_rows
        if left <= 0:
            return


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with string views as strings, in lists too: Arrow's functions on text take no views."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_string_view(field.type):
            kind = pa.string()
        elif (pa.types.is_list(field.type) or pa.types.is_large_list(field.type)) and pa.types.is_string_view(
            field.type.value_type
        ):
            kind = pa.list_(pa.string())
        else:
            continue
        batch = batch.set_column(at, field.name, batch.column(at).cast(kind))
    return batch


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples with named columns, read again at each iteration.

    Attributes:
        schema: the columns' names and types. num_rows: how many examples there are.
        read: gives all of them in order, in batches of any size that have this schema.
    """

    schema: pa.Schema
    num_rows: int
    read: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, table: pa.Table) -> Examples:
        """The examples of a table in memory."""
        return cls(table.schema, table.num_rows, lambda: iter(table.to_batches()))

    @property
    def column_names(self) -> list[str]:
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All examples in order, at most :data:`PIECE_EXAMPLES` and, unless one is larger, 4 MiB at a time."""
        for batch in self.read():
            fitting = PIECE_BYTES * batch.num_rows // max(batch.nbytes, 1)
            size = max(1, min(PIECE_EXAMPLES, fitting))
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size)

    def changed(self, change: Change) -> Examples:
        """These examples, each piece changed when it is read."""

        def read() -> Iterator[pa.RecordBatch]:
            start = 0
            for batch in self.batches():
                yield change(batch, start)
                start += batch.num_rows

        nothing = [column.chunk(0) for column in self.schema.empty_table().columns]
        empty = pa.RecordBatch.from_arrays(nothing, schema=self.schema)
        return Examples(change(empty, 0).schema, self.num_rows, read)

    def limited(self, count: int) -> Examples:
        """The first ``count`` examples, or all if there are fewer."""
        return Examples(self.schema, min(self.num_rows, count), lambda: first_of(self.read(), count))

    def head(self, count: int | None = None) -> pa.Table:
        """The first ``count`` examples, or all of them, in memory."""
        return pa.Table.from_batches(first_of(self.batches(), count), self.schema)

    def take(self, numbers: NDArray[np.int64]) -> pa.Table:
        """The examples with these ascending indices, in memory."""
        found, at = [], 0
        for batch in self.batches():
            inside = numbers[(numbers >= at) & (numbers < at + batch.num_rows)]
            found.append(batch.take(pa.array(inside - at)))
            at += batch.num_rows
        return pa.Table.from_batches(found, self.schema)

    def written(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Yield all examples as :meth:`batches` does, and write them to a Parquet file in row groups of about 8 MiB.

        The file is complete when the iterator is exhausted. Reading and changing the examples can take as long as
        tokenising them, so one pass serves both.
        """
        # Metadata of pandas would make a column the index, and a missing label NA, when pandas reads the file.
        schema = self.schema.remove_metadata()
        # Arrow would read a path like exp:1/store as an address, and needs names in UTF-8; an open file has no name.
        with pa.OSFile(os.fsencode(path), "wb") as file, pq.ParquetWriter(file, schema) as writer:
            held: list[pa.RecordBatch] = []
            for batch in self.batches():
                yield batch
                held.append(batch)
                if sum(piece.nbytes for piece in held) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held, schema))
                    held = []
            if held:
                writer.write_table(pa.Table.from_batches(held, schema))
