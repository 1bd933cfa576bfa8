"""The resources of this machine, or of this process's container, Slurm job or user where these have less.

Limits are read from control groups of version 2.
"""

from __future__ import annotations

import os
from pathlib import Path

CGROUP, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
VERSION_2 = "0::/"  # begins the line of OWN_GROUP with the path of this process's group


def cores() -> int:
    """The number of cores that this process may use: those it is bound to, or the share of a group if that is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        match _words(group / "cpu.max"):
            case [share, period] if share != "max":
                bound = min(bound, int(share) // int(period))
    return max(bound, 1)


def spare_memory() -> int | None:
    """Bytes of memory that this machine, or a group with a limit, has left; None if the system does not report it."""
    facts = _facts(Path("/proc/meminfo"))
    left = [facts["MemAvailable:"] * 1024] if "MemAvailable:" in facts else []
    for group in _groups():
        limit, used = _words(group / "memory.max"), _words(group / "memory.current")
        if limit and used and limit != ["max"]:
            facts = _facts(group / "memory.stat")
            # The kernel frees these pages before it kills. "file" would count shared memory too, which it cannot free.
            cached = facts.get("active_file", 0) + facts.get("inactive_file", 0)
            left.append(max(int(limit[0]) - int(used[0]) + cached, 0))
    return min(left, default=None)


def _groups() -> list[Path]:
    """The folders of this process's control group and of all groups around it, whose limits hold too."""
    lines = [line for line in _text(OWN_GROUP).splitlines() if line.startswith(VERSION_2)]
    own = CGROUP / (lines[0] if lines else VERSION_2).removeprefix(VERSION_2)
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(CGROUP)]


def _facts(path: Path) -> dict[str, int]:
    """The numbers of a file with one name and number per line."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
