"""Huge pages for the memory of the processes that train.

A step through an encoder passes over gigabytes of memory in small operations. With pages of 4 kB much of its time is
the lookup of addresses (``benchmarks/lengths.py``). Encoding gains nothing, and frozen heads gain little.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variable with which a new process's C library asks for huge pages: glibc 2.35 or later.

    Other libraries ignore it. Other tunables that the user has set stay, and so does one for huge pages.
    """
    known = environment.get(TUNABLES, "")
    return {} if HUGE_PAGES in known else {TUNABLES: f"{known}:{HUGE_PAGES}=1".removeprefix(":")}
