"""Numbers with the noun that they count, and the first of many names."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def few(names: Sequence[str], most: int) -> str:
    """The first ``most`` names, and how many more there are: ``a, b and 3 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
