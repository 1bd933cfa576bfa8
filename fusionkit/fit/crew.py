"""How many processes share a sweep: as cores, memory and units allow, where that is worth their start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

START_SECONDS = 3.0  # a worker's imports, on the machines that this was seen on
CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores that this process may use: those it is bound to, or fewer where a container's share is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    match _words(CGROUP / "cpu.max"):
        case [share, period] if share != "max":
            return max(min(bound, int(share) // int(period)), 1)
    return bound


def spare_memory() -> int | None:
    """Bytes that this machine, or this container, has left; None where nobody tells."""
    lines = [line.split() for line in _text(Path("/proc/meminfo")).splitlines()]
    left = [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    limit, used = _words(CGROUP / "memory.max"), _words(CGROUP / "memory.current")
    if limit and used and limit != ["max"]:
        left.append(max(int(limit[0]) - int(used[0]), 0))
    return min(left, default=None)


def share_out(units: Sequence[float], workers: int) -> float:
    """Seconds until the last of so many workers is done, who take the units in their order.

    Args:
        units: the seconds of each.
    """
    until = [0.0] * max(workers, 1)
    for seconds in units:
        until[until.index(min(until))] += seconds
    return max(until)


def worth_it(units: Sequence[float], workers: int) -> bool:
    """Whether so many workers are done before one process alone, their start included."""
    return START_SECONDS + share_out(units, workers) < share_out(units, 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
