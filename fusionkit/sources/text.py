"""Text files line by line, with errors that name the file, in pieces of bounded size.

Plain text, as language models are trained on, is itself a source: each line is an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.sources.examples import PIECE_EXAMPLES

PIECE_CHARACTERS = 1 << 20
Example = TypeVar("Example")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; a byte-order mark is dropped."""
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            for line in file:
                yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text",
            received=f"byte 0x{error.object[error.start]:02x} at offset {error.start} of a block",
            remedy="convert it, e.g. iconv -f latin1 -t utf-8",
        ) from error


def in_pieces(examples: Iterable[tuple[Example, int]]) -> Iterator[list[Example]]:
    """Examples, each with the characters it was read from, in lists of at most 1000 and about a million characters."""
    held: list[Example] = []
    characters = 0
    for example, length in examples:
        held.append(example)
        characters += length
        if len(held) == PIECE_EXAMPLES or characters >= PIECE_CHARACTERS:
            yield held
            held, characters = [], 0
    if held:
        yield held


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
