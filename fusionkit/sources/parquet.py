"""Parquet files; class numbers are replaced by the names that ``datasets`` keeps in the schema."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fusionkit.errors import DataError
from fusionkit.sources.examples import PIECE_EXAMPLES

READ_BYTES = 1 << 20  # per column at once: one row group may hold all rows


def read_parquet(path: Path) -> Iterator[pa.RecordBatch]:
    """One Parquet file."""
    try:
        # The file's name may not be UTF-8.
        with pq.ParquetFile(pa.OSFile(os.fsencode(path)), buffer_size=READ_BYTES, pre_buffer=False) as file:
            if file.metadata.num_rows == 0:
                raise DataError(f"{path} holds no rows", expected="one row an example", received="an empty table")
            named = b"huggingface" in (file.schema_arrow.metadata or {})
            for batch in file.iter_batches(PIECE_EXAMPLES):
                yield _with_class_names(batch) if named else _without_dictionaries(batch)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a readable Parquet file", received=str(error).splitlines()[0], remedy="write it again"
        ) from error


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    for at, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):  # what pandas makes of a categorical
            batch = batch.set_column(at, field.name, batch.column(at).cast(field.type.value_type))
    return batch


def _with_class_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    import datasets

    from fusionkit.sources.hub import one_batch, with_class_names

    # Without a given fingerprint, `datasets` hashes all values.
    piece = datasets.Dataset(pa.Table.from_batches([batch]), fingerprint="piece")
    return with_class_names(piece.features, one_batch(piece.with_format("arrow")[:]), 0)
