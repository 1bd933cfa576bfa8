"""Plain text, as language models are trained on: each line is an example, empty ones are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.text import in_pieces, read_lines


def read_text_lines(path: Path, notes: list[str]) -> Iterator[pa.RecordBatch]:
    """The lines as rows with the column ``text``, white space at their ends included.

    Args:
        notes: gets a line with how many empty lines were left out, once all have been read.
    """
    empty = 0

    def filled() -> Iterator[tuple[str, int]]:
        nonlocal empty
        for line in read_lines(path):
            if line.strip():
                yield line, len(line)
            else:
                empty += 1

    examples = 0
    for lines in in_pieces(filled()):
        examples += len(lines)
        yield pa.record_batch({"text": pa.array(lines, pa.string())})
    if not examples:
        raise DataError(f"{path} holds no text", expected="a text a line", received=f"{empty} empty lines")
    if empty:
        notes.append(f"{path.name}: {empty:,} empty lines are left out")
