"""The resources of this machine, or of this process's container."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of cores that this process may use: those it is bound to, or a container's share if that is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    match _words(CGROUP / "cpu.max"):
        case [share, period] if share != "max":
            return max(min(bound, int(share) // int(period)), 1)
    return bound


def spare_memory() -> int | None:
    """Bytes of memory that this machine or container has left; None if the system does not report it."""
    facts = _facts(Path("/proc/meminfo"))
    left = [facts["MemAvailable:"] * 1024] if "MemAvailable:" in facts else []
    limit, used = _words(CGROUP / "memory.max"), _words(CGROUP / "memory.current")
    if limit and used and limit != ["max"]:
        facts = _facts(CGROUP / "memory.stat")
        # The kernel frees these pages before it kills. "file" would count shared memory too, which it cannot free.
        cached = facts.get("active_file", 0) + facts.get("inactive_file", 0)
        left.append(max(int(limit[0]) - int(used[0]) + cached, 0))
    return min(left, default=None)


def _facts(path: Path) -> dict[str, int]:
    """The numbers of a file with one name and number per line."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
