"""CSV and TSV with a header line.

CSV fields may be quoted and then hold commas, quotes and line ends. TSV fields are read without quoting, as in GLUE's
files, where an unpaired quote is text. A column becomes numeric where all of its cells in every split are decimal
numbers: ``007``, and whole numbers of more digits than a float holds, stay text. A fraction is rounded to a float, and
``1.10`` is the same number as ``1.1``. In a numeric column an empty cell is a missing number, and so is ``nan``, which
other programs write for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from fusionkit.errors import DataError
from fusionkit.sources.examples import Examples, refuse_repeated
from fusionkit.sources.text import read_lines

DECIMAL = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?$"
MISSING = r"^(?i:nan)?$"
# Arrow parses a file in blocks and reads eight ahead; a row must fit in one block.
BLOCK_BYTES, LARGEST_BLOCK_BYTES = 256 << 10, 64 << 20


ADD_ROWS = "write a header and one line an example into the file, or leave it out"


def read_csv(path: Path, limit: int | None = None) -> Iterator[pa.RecordBatch]:
    """A comma-separated table, every column as text; ``limit``: how many rows are needed."""
    return _read(path, pacsv.ParseOptions(delimiter=",", newlines_in_values=True), limit)


def read_tsv(path: Path, limit: int | None = None) -> Iterator[pa.RecordBatch]:
    """A tab-separated table without quoting, every column as text; ``limit``: how many rows are needed."""
    return _read(path, pacsv.ParseOptions(delimiter="\t", quote_char=False), limit)


def _read(path: Path, parse: pacsv.ParseOptions, limit: int | None) -> Iterator[pa.RecordBatch]:
    last, longest = _last_line_and_longest_row(path, bool(parse.quote_char), limit)
    block = min(max(BLOCK_BYTES, longest), LARGEST_BLOCK_BYTES)
    # One thread: only then does Arrow name the row of a ragged line.
    read = pacsv.ReadOptions(use_threads=False, block_size=block)
    final, open_file = None, partial(pa.OSFile, os.fsencode(path))  # its name may not be UTF-8
    try:
        header = pacsv.open_csv(open_file(), read_options=read, parse_options=parse).schema.names
        refuse_repeated(path, header)
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False)
        for batch in pacsv.open_csv(open_file(), read_options=read, parse_options=parse, convert_options=convert):
            if batch.num_rows:
                yield batch
                final = batch
    except pa.ArrowInvalid as error:
        empty = "Empty CSV file" in str(error)
        if empty and last:  # a header whose line does not end
            raise _without_rows(path) from error
        raise DataError(
            f"{path} {'is empty' if empty else 'is not a readable table'}",
            expected="a header line, then one line an example",
            received="no line at all" if empty else str(error),
            remedy=ADD_ROWS
            if empty
            else "quote fields that hold a comma, or use JSON lines"
            if parse.quote_char
            else "take the tabs out of the fields, or use JSON lines",
        ) from error
    if final is None:
        raise _without_rows(path)
    # Arrow reads an unclosed quote up to the end of the file: the last field swallows all later rows.
    swallowed = final.column(-1)[-1].as_py()
    if "\n" in swallowed and not last.rstrip().endswith('"'):
        raise DataError(
            f"{path}: a quote is never closed",
            expected="each quoted field to end with a quote",
            received=f"a last field of {swallowed.count(chr(10)) + 1} lines: {swallowed[:60]!r}",
            remedy='close it, or write a quote inside a quoted field as ""',
        )


def _without_rows(path: Path) -> DataError:
    return DataError(
        f"{path} holds no rows", expected="lines after the header", received="a header alone", remedy=ADD_ROWS
    )


def _last_line_and_longest_row(path: Path, quotes: bool, limit: int | None) -> tuple[str, int]:
    """The last line that is not empty, and an upper bound of the bytes of a row, line ends inside quotes included; with
    a limit, of the header and the first rows only.
    """
    last, longest, row, quoted, rows = "", 0, 0, False, 0
    for line in read_lines(path):  # a clear error for an encoding that Arrow would report by byte
        last = line or last
        row += 4 * len(line) + 2  # a character is at most four bytes, a line end two
        quoted ^= quotes and line.count('"') % 2 == 1
        if not quoted:
            longest, row, rows = max(longest, row), 0, rows + (line != "")
            if limit is not None and rows > limit:
                break
    return last, max(longest, row)


def with_numbers(splits: dict[str, Examples]) -> dict[str, Examples]:
    """Text columns turned into numbers where all of their cells in every split are numbers."""
    kinds = {name: _Kind() for examples in splits.values() for name in examples.column_names}
    for examples in splits.values():
        for batch in examples.batches():
            for name in kinds.keys() & set(batch.schema.names):
                kinds[name].see(batch.column(name))
    types = {name: found for name, kind in kinds.items() if (found := kind.number_type())}
    if not types:
        return splits
    return {split: examples.changed(partial(_cast, types)) for split, examples in splits.items()}


def _cast(types: dict[str, pa.DataType], batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    for at, name in enumerate(batch.schema.names):
        if name in types:
            batch = batch.set_column(at, name, pc.cast(_or_none(batch.column(at)), types[name]))
    return batch


def _or_none(texts: pa.Array) -> pa.Array:
    """The texts with nulls for empty cells and ``nan``."""
    return pc.if_else(pc.match_substring_regex(texts, MISSING), None, texts)


@dataclass
class _Kind:
    """The number types that the values of a column seen so far allow."""

    any: bool = False
    integers: bool = True
    exact: bool = True
    decimals: bool = True

    def see(self, texts: pa.Array) -> None:
        texts = _or_none(texts).drop_null()
        if not len(texts):
            return
        self.any = True
        if self.integers:
            try:
                same = pc.cast(pc.cast(texts, pa.int64()), pa.string()).equals(texts)
                self.exact = self.exact and same
            except pa.ArrowInvalid:
                self.integers = False
        # DECIMAL rejects "inf", which is more likely a word, and more digits before the point than a float holds (15).
        self.decimals = self.decimals and bool(pc.all(pc.match_substring_regex(texts, DECIMAL)).as_py())

    def number_type(self) -> pa.DataType | None:
        if self.integers:
            return pa.int64() if self.any and self.exact else None
        return pa.float64() if self.decimals else None
