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
    lines = [line.split() for line in _text(Path("/proc/meminfo")).splitlines()]
    left = [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    limit, used = _words(CGROUP / "memory.max"), _words(CGROUP / "memory.current")
    if limit and used and limit != ["max"]:
        left.append(max(int(limit[0]) - int(used[0]), 0))
    return min(left, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
