"""Memory that was freed, given back to the system.

Batches have ever new shapes, and what they leave free is too cut up for the allocator to give back by itself: it would
grow for as long as an encode lasts, some 100 MB over a million sub-tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _trim_of_the_library() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another allocator than glibc's
        return None


_trim = _trim_of_the_library()


def give_back() -> None:
    """Now and then between two parts: a few milliseconds, and more to have it again.

    Where the C library has no such call nothing is done.
    """
    if _trim is not None:
        _trim(0)
