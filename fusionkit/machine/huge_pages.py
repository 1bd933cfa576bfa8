"""Huge pages for the memory of the processes that train.

A step through an encoder passes over gigabytes in small operations. Without huge pages it took 3 to 14 % longer in
processes that took turns, and half as long again in a process beside one with them (``benchmarks/RESULTS.md``).
Encoding gains nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
SINCE = (2, 35)  # the version of glibc that brought the tunable


def with_huge_pages(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variable with which a new process's C library asks for huge pages.

    Empty where the library has no such tunable, and where the user has set it. Other tunables of the user stay.
    """
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(part) for part in version.split(".") if part.isdigit()) < SINCE:
        return {}
    known = environment.get(TUNABLES, "")
    return {} if HUGE_PAGES in known else {TUNABLES: f"{known}:{HUGE_PAGES}=1".removeprefix(":")}
