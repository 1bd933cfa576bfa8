"""JSON lines: one object a line; its keys are the columns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.text import read_lines


def read_jsonl(path: Path) -> pa.Table:
    """All objects as a table; blank lines are skipped, a key absent from a line is null there."""
    rows: list[dict[str, object]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "deep nesting"
            raise DataError(
                f"{path}: line {number} is broken JSON",
                expected="one JSON object a line",
                received=f"{what}: {line[:60]!r}",
                remedy="mend or remove the line",
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}: line {number} is no JSON object",
                expected='{"column": value, …}',
                received=line[:60],
                remedy="write one object a line (JSON lines), not an array",
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no rows", expected="one JSON object a line", received="an empty file")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                f"{path}: column {name!r} mixes types",
                expected="one type in all lines",
                received=str(error),
                remedy="write the column's values all as text, or all as numbers",
            ) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise DataError(
                f"{path}: column {name!r} holds a value that cannot be stored",
                expected="numbers of at most 64 bits, text without lone surrogates",
                received=str(error),
                remedy="write large numbers as text; mend the text's encoding",
            ) from error
    return pa.table(columns)
