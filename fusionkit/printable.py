"""Texts of a data set where a program would obey them.

A terminal obeys control characters: they become escapes like ``\\x1b``. A spreadsheet computes a cell that begins
like a formula: it gets an apostrophe in front (OWASP, *CSV Injection*).
"""

from __future__ import annotations

import re
from typing import Any

FORMULA, NUMBER = ("=", "+", "-", "@", "\t", "\r"), re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
# C0, DEL and C1 but for the line end; line and paragraph separators; marks that turn the direction of what follows;
# halves of surrogate pairs, which a file's name may hold and no encoding can write.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with control characters escaped; line ends stay."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, with control characters escaped, and cut to so many characters with ``…`` at the end."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return printable(cut).replace("\n", r"\n")


def json_escaped(text: str) -> str:
    """JSON with the control characters escaped that its texts may hold as they are; line ends between values stay."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def spreadsheet_safe(value: Any) -> Any:
    """A cell of a CSV file: a text that is neither a formula nor a command to a terminal; other values as they are."""
    if not isinstance(value, str):
        return value
    formula = value.startswith(FORMULA) and not NUMBER.fullmatch(value)
    return one_line(f"'{value}" if formula else value)
