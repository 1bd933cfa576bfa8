"""Parquet files; class names kept by ``datasets`` in the schema are put back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fusionkit.errors import DataError


def read_parquet(path: Path) -> pa.Table:
    """One Parquet file as a table."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a readable Parquet file",
            received=str(error).splitlines()[0],
            remedy="write it again",
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} holds no rows", expected="one row an example", received="an empty table")
    if b"huggingface" in (table.schema.metadata or {}):
        import datasets

        from fusionkit.sources.hub import named_labels

        return named_labels(datasets.Dataset(table))
    for at, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):  # what pandas makes of a categorical
            table = table.set_column(at, column.name, table.column(at).cast(column.type.value_type))
    return table
