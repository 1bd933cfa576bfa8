"""Returning freed memory to the operating system.

Batches differ in shape, so freed memory is fragmented and the allocator keeps it. Without trimming, an encode grows by
some 100 MB over a million sub-tokens.
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


def trim_freed_memory() -> None:
    """Return freed memory to the system: takes a few milliseconds, and the next allocations take longer.

    Does nothing where the C library has no ``malloc_trim``.
    """
    if _trim is not None:
        _trim(0)
