"""Parsed examples on the disk: Arrow record batches in an unnamed file in the folder for temporary files.

Nothing is left behind: the system frees the space when the last reader closes the file, also when the process is
killed. Later pieces may have more columns or wider types, as in JSON lines. All pieces are read back with all columns
in their widest types.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError, FusionkitError
from fusionkit.io.files import disk_errors
from fusionkit.sources.examples import Examples

ROOM = "free some space there, or set TMPDIR to a folder with more"


def spooled(pieces: Iterable[pa.RecordBatch], name: str) -> Examples:
    """Write pieces to the disk, in one pass over them, and return them as examples.

    Args:
        pieces: record batches of any size. name: the source's, for errors.

    Raises:
        DataError: the types of a column in two pieces have no common type. FusionkitError: the disk is full.
    """
    folder = _temporary_folder()
    with disk_errors(folder, ROOM):
        file = _UnnamedFile()
    stream, schema, count, streams = None, pa.schema([]), 0, 0
    for piece in pieces:
        wider = _agreed(schema, piece.schema, name) if streams else piece.schema
        piece = _widened(piece, wider, name)
        with disk_errors(folder, ROOM):
            if stream is None or wider != schema:
                _end(stream)
                stream, schema, streams = pa.ipc.new_stream(pa.PythonFile(file, "w"), wider), wider, streams + 1
            stream.write_batch(piece)
        count += piece.num_rows
    with disk_errors(folder, ROOM):
        _end(stream)
    read = partial(_read, file, schema, name)
    if streams > 1:
        for _ in read():  # report now a number that the wider type cannot hold
            pass
    return Examples(schema, count if len(schema) else 0, read)


def mixed_types(name: str, column: str, error: Exception) -> DataError:
    """The error for a column whose values have no common type."""
    return DataError(
        f"{name}: column {column!r} mixes types",
        expected="one type in all lines",
        received=str(error),
        remedy="write the column's values all as text, or all as numbers",
    )


class _UnnamedFile:
    """A file that grows at its end and is read at any place; closed when the object is freed."""

    closed = False  # Arrow reads this attribute

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self.handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.handle)
        self.size = 0

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # the system may write only a part
            taken = os.pwrite(self.handle, left, self.size)
            self.size, left = self.size + taken, left[taken:]

    def flush(self) -> None:
        return


class _ReadPosition:
    """A reader's own place in an unnamed file."""

    closed = False

    def __init__(self, file: _UnnamedFile) -> None:
        self.file, self.at = file, 0

    def read(self, count: int) -> bytes:
        data = os.pread(self.file.handle, count, self.at)
        self.at += len(data)
        return data


def _read(file: _UnnamedFile, schema: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    place = _ReadPosition(file)
    source = pa.PythonFile(place, "r")
    while place.at < file.size:  # one stream per schema
        for batch in pa.ipc.open_stream(source):
            yield _widened(batch, schema, name)


def _end(stream: pa.RecordBatchStreamWriter | None) -> None:
    if stream is not None:
        stream.close()


def _agreed(known: pa.Schema, fresh: pa.Schema, name: str) -> pa.Schema:
    """The narrowest schema that holds both; the columns known come first."""
    if fresh.equals(known):
        return known
    fields = {field.name: field for field in known}
    for field in fresh:
        both = [pa.schema([fields.get(field.name, field)]), pa.schema([field])]
        try:
            fields[field.name] = pa.unify_schemas(both, promote_options="permissive").field(0)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise mixed_types(name, field.name, error) from error
    return pa.schema(fields.values(), metadata=known.metadata)


def _widened(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        absent = field.name not in batch.schema.names
        try:
            columns.append(_cast(pa.nulls(batch.num_rows) if absent else batch.column(field.name), field.type))
        except pa.ArrowInvalid as error:
            raise mixed_types(name, field.name, error) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    # Arrow 26 casts a nested column with nulls to an array whose child is too short.
    return pa.array(column.to_pylist(), kind) if pa.types.is_nested(kind) else column.cast(kind)


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # none of the usual folders can be written
        raise FusionkitError(
            "no folder for temporary files can be written", received=error.strerror, remedy=ROOM
        ) from error
