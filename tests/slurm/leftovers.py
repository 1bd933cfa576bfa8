"""What a test run that was killed has left of its Slurm: the folder, and the processes that know its slurm.conf.

The daemons end with their parent. Slurm's watchers of jobs (slurmstepd), and the jobs, do not: each has the path of its
slurm.conf in its environment, and nothing else on the machine has that path.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import psutil

PREFIX, OWNER = "fusionkit-slurm-", "owner.pid"


def claim(folder: Path) -> None:
    """Note that a Slurm's folder is this process's."""
    (folder / OWNER).write_text(f"{os.getpid()} {_began(os.getpid())}")


def sweep(root: Path) -> list[Path]:
    """End and remove what dead processes have left below ``root``; nothing without their note is touched.

    Returns:
        the folders that were removed.
    """
    dead = [folder for folder in sorted(root.glob(f"{PREFIX}*")) if _is_dead(folder)]
    for folder in dead:
        while found := users(folder):
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=1)
        shutil.rmtree(folder, ignore_errors=True)
    return dead


def users(folder: Path) -> list[psutil.Process]:
    """The processes that belong to a folder's Slurm."""
    found, word = [], f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    for process in psutil.process_iter():
        # Read whole: slurmstepd writes its title over the first variables, where psutil would stop. A zombie has none.
        with contextlib.suppress(psutil.Error, OSError):
            if word in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process)
    return found


def _is_dead(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        number, began = (folder / OWNER).read_text().split()
        return _began(int(number)) != began
    except (OSError, ValueError):  # no note, or half of one: it is just being made
        return False


def _began(number: int) -> str:
    """When a process began, in ticks since the machine did: no other of the same number has it."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "never"
