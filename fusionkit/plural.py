"""Numbers with the noun that they count."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
