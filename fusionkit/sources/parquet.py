"""Parquet files; class numbers are replaced by the names that ``datasets`` keeps in the schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fusionkit.errors import DataError, first_line
from fusionkit.sources.examples import PIECE_EXAMPLES, refuse_repeated, without_views

READ_BYTES = 1 << 20  # per column at once: one row group may hold all rows


def read_parquet(path: Path) -> Iterator[pa.RecordBatch]:
    """One Parquet file."""
    try:
        # The file's name may not be UTF-8.
        with pq.ParquetFile(pa.OSFile(os.fsencode(path)), buffer_size=READ_BYTES, pre_buffer=False) as file:
            if file.metadata.num_rows == 0:
                raise DataError(f"{path} holds no rows", expected="one row an example", received="an empty table")
            refuse_repeated(path, file.schema_arrow.names)
            named = b"huggingface" in (file.schema_arrow.metadata or {})
            change = _class_names_by(file.schema_arrow) if named else _without_dictionaries
            for batch in file.iter_batches(PIECE_EXAMPLES):
                batch.validate(full=True)  # the reader takes bytes that are no UTF-8 for a text
                yield change(batch)
    except PermissionError:
        raise
    except (ValueError, OSError) as error:  # Arrow's, or of `datasets`, which cannot read the names of classes
        raise DataError(
            f"{path} is not a readable Parquet file", received=first_line(error), remedy="write it again"
        ) from error


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    for at, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type):  # what pandas makes of a categorical
            batch = batch.set_column(at, field.name, batch.column(at).cast(field.type.value_type))
    return without_views(batch)


def _class_names_by(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The function that replaces class numbers in batches of this schema by their names."""
    import datasets
    from datasets.table import table_cast

    from fusionkit.sources.hub import one_batch, with_class_names

    features = datasets.Features.from_arrow_schema(schema)
    plain = features.arrow_schema  # without dictionaries

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        # Not RecordBatch.cast: Arrow 26 casts a nested column with nulls to an array whose child is too short.
        return with_class_names(features, one_batch(table_cast(pa.Table.from_batches([batch]), plain)), 0)

    return change
