"""Texts from a data set made safe for terminals and spreadsheets.

A terminal executes control characters: they become escapes like ``\\x1b``. A spreadsheet evaluates a cell that begins
like a formula: it gets a leading apostrophe (OWASP, *CSV Injection*).
"""

from __future__ import annotations

import re
import shlex
from typing import Any

FORMULA, NUMBER = ("=", "+", "-", "@", "\t", "\r"), re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
# C0, DEL and C1 except the line feed; line and paragraph separators; bidirectional controls; the byte order mark; lone
# surrogates, which a file's name may hold and no encoding can write.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with control characters escaped; line ends stay."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int | None = None) -> str:
    """The text, cut to ``most`` characters with ``…`` at the end, then on one line with control characters escaped."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return printable(cut).replace("\n", r"\n")


def as_word(path: object) -> str:
    """A path as one word of a shell's command, in quotes where it has spaces or the like."""
    return shlex.quote(str(path))


def plain_text(value: Any) -> str:
    """A value of a column as text; the elements of a list or an array with a space between them."""
    several = isinstance(value, list) or getattr(value, "shape", ()) != ()
    return " ".join(map(str, value)) if several else str(value)


def json_escaped(text: str) -> str:
    """JSON with the control characters escaped that JSON allows unescaped in strings; line ends between values stay."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def spreadsheet_safe(value: Any) -> Any:
    """A CSV cell that no spreadsheet evaluates and no terminal executes; values that are not texts stay as they are."""
    if not isinstance(value, str):
        return value
    formula = value.startswith(FORMULA) and not NUMBER.fullmatch(value)
    return one_line(f"'{value}" if formula else value)
