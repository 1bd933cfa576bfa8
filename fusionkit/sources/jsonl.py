"""JSON lines: one object a line; its keys are the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.spool import mixed_types
from fusionkit.sources.text import in_pieces, read_lines


def read_jsonl(path: Path) -> Iterator[pa.RecordBatch]:
    """The objects piece by piece; blank lines are skipped. A piece has columns only for the keys of its objects."""
    for rows in in_pieces(_objects(path)):
        yield _piece(path, rows)


def _objects(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    empty = True
    with path.open("rb") as file:  # an array is one line, which may be larger than memory
        if (begins := file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")).startswith(b"["):
            raise _no_object(path, 1, begins[:60].decode(errors="replace"))
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield _object(path, number, line), len(line)
            empty = False
    if empty:
        raise DataError(f"{path} holds no rows", expected="one JSON object a line", received="an empty file")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # Python refuses numbers of thousands of digits
        what = "deep nesting" if isinstance(error, RecursionError) else str(error).split(";")[0]
        what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else what
        raise DataError(
            f"{path}: line {number} is broken JSON",
            expected="one JSON object a line",
            received=f"{what}: {line[:60]!r}",
            remedy="mend or remove the line",
        ) from error
    if not isinstance(row, dict):
        raise _no_object(path, number, line)
    return row


def _no_object(path: Path, number: int, line: str) -> DataError:
    return DataError(
        f"{path}: line {number} is no JSON object",
        expected='{"column": value, …}',
        received=line[:60].rstrip(),
        remedy="write one object a line (JSON lines), not an array",
    )


def _piece(path: Path, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            name.encode()  # a column's name may have lone surrogates too
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise mixed_types(str(path), name, error) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise DataError(
                f"{path}: column {name!r} holds a value that cannot be stored",
                expected="numbers of at most 64 bits, text without lone surrogates",
                received=str(error),
                remedy="write large numbers as text; mend the text's encoding",
            ) from error
    if not columns:  # objects without keys still count as rows: a later piece may have columns
        return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct([])))
    return pa.record_batch(columns)
