"""Reading text files line by line, with errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fusionkit.errors import DataError


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
