"""Texts of a data set on a terminal: control characters, which a terminal obeys, become escapes like ``\\x1b``."""

from __future__ import annotations

import re

# C0, DEL and C1 but for the line end; line and paragraph separators; marks that turn the direction of what follows.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def printable(text: str) -> str:
    """The text with control characters escaped; line ends stay."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, with control characters escaped, and cut to so many characters with ``…`` at the end."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return printable(cut).replace("\n", r"\n")
