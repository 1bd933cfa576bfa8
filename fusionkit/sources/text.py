"""Text files line by line, with errors that name the file, in pieces of bounded size.

Plain text, as language models are trained on, is itself a source: each line is an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from fusionkit.errors import DataError
from fusionkit.plural import counted
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
        raise _not_utf8(path) from error


def _not_utf8(path: Path) -> DataError:
    """The error that names the line and its likely encoding."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                encoding = _encoding_of(line, number)
                shown = line[max(error.start - 20, 0) : error.start + 20].decode(encoding, errors="ignore").strip()
                return DataError(
                    f"{path}: line {number} is not UTF-8 text",
                    expected="UTF-8",
                    received=f"byte 0x{line[error.start]:02x}; read as {encoding}: {shown!r}",
                    remedy=f"convert it, e.g. iconv -f {encoding} -t utf-8 {path.name} > utf8{path.suffix}",
                )
    return DataError(f"{path} is not UTF-8 text", expected="UTF-8", remedy="convert it")  # it changed meanwhile


def _encoding_of(line: bytes, number: int) -> str:
    """The likely encoding of a line that is not UTF-8. UTF-16 has a mark at the file's start. The bytes 0x80 to 0x9f
    are letters and quotes in Windows' code page, but no characters in ISO 8859.
    """
    if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if not any(0x80 <= byte <= 0x9F for byte in line):
        return "iso-8859-1"
    try:
        line.decode("cp1252")
    except UnicodeDecodeError:
        return "iso-8859-1"
    return "cp1252"


def in_pieces(examples: Iterable[tuple[Example, int]]) -> Iterator[list[Example]]:
    """Examples in lists of at most 1000 and about a million characters; each comes with its number of characters."""
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
        raise DataError(f"{path} holds no text", expected="a text a line", received=counted(empty, "empty line"))
    if empty:
        notes.append(f"{path.name}: {counted(empty, 'empty line')} left out")
