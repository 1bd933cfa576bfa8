"""CSV and TSV with a header line.

CSV fields may be quoted and then hold commas, quotes and line ends; TSV fields are taken as they stand, as
in GLUE's files, where a lone quote is text. A column becomes numeric only where that loses nothing in any
split: ``007`` and numbers of more digits than a float holds stay text.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from fusionkit.errors import DataError
from fusionkit.sources.text import read_lines

DECIMAL = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?$"


def read_csv(path: Path) -> pa.Table:
    """A comma-separated table, every column as text."""
    return _read(path, pacsv.ParseOptions(delimiter=",", newlines_in_values=True))


def read_tsv(path: Path) -> pa.Table:
    """A tab-separated table without quoting, every column as text."""
    return _read(path, pacsv.ParseOptions(delimiter="\t", quote_char=False))


def _read(path: Path, parse: pacsv.ParseOptions) -> pa.Table:
    last = ""
    for line in read_lines(path):  # a clear error for an encoding that Arrow would report by byte
        last = line or last
    # One thread: only then does Arrow name the row of a ragged line.
    read = pacsv.ReadOptions(use_threads=False, block_size=64 << 20)
    try:
        header = pacsv.open_csv(path, read_options=read, parse_options=parse).schema.names
        if repeated := sorted({name for name in header if header.count(name) > 1}):
            raise DataError(
                f"{path}: two columns are called {repeated[0]!r}",
                expected="a name of its own for each column",
                received=", ".join(header),
                remedy="rename one of them in the header line",
            )
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False)
        table = pacsv.read_csv(path, read_options=read, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid as error:
        empty = "Empty CSV file" in str(error)
        raise DataError(
            f"{path} {'is empty' if empty else 'is not a readable table'}",
            expected="a header line, then one line an example",
            received="no line at all" if empty else str(error),
            remedy="quote fields that hold the separator, or use JSON lines",
        ) from error
    if table.num_rows == 0:
        raise DataError(f"{path} holds no rows", expected="lines after the header", received="a header alone")
    # Arrow takes a quote that is never closed to reach to the end of the file, and with it all rows behind.
    if "\n" in (swallowed := table.column(-1)[-1].as_py()) and not last.rstrip().endswith('"'):
        raise DataError(
            f"{path}: a quote is never closed",
            expected="each quoted field to end with a quote",
            received=f"a last field of {swallowed.count(chr(10)) + 1} lines: {swallowed[:60]!r}",
            remedy='close it, or write a quote inside a quoted field as ""',
        )
    return table


def with_numbers(splits: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Text columns turned into numbers where that loses nothing in any split."""
    names = list(next(iter(splits.values())).column_names)
    for name in names:
        tables = [table for table in splits.values() if name in table.column_names]
        kind = _number_type([table.column(name) for table in tables])
        if kind is None:
            continue
        for split, table in splits.items():
            if name in table.column_names:
                at = table.column_names.index(name)
                splits[split] = table.set_column(at, name, pc.cast(table.column(name), kind))
    return splits


def _number_type(columns: list[pa.ChunkedArray]) -> pa.DataType | None:
    try:
        numbers = [pc.cast(column, pa.int64()) for column in columns]
        exact = all(pc.cast(n, pa.string()).equals(c) for n, c in zip(numbers, columns, strict=True))
        return pa.int64() if exact else None
    except pa.ArrowInvalid:
        pass
    # "nan" and "inf" are words before they are numbers, and a float holds 15 digits before the point.
    plain = all(pc.all(pc.match_substring_regex(column, DECIMAL)).as_py() for column in columns)
    return pa.float64() if plain else None
