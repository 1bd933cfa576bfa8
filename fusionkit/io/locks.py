"""Locked files: the kernel releases a lock when the process that holds it ends, for whatever reason."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system without locks
TRIES = 100  # attempts to lock a file in a folder that other processes may remove meanwhile


def this_process() -> str:
    """The name of this process, for messages of other processes."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def try_lock(path: Path) -> IO[str] | None:
    """The open, locked file at ``path``, created if there is none; None if another process holds it.

    A process may remove such a file only while holding it. OSError if the folder is not there or may not be written to,
    the path is a link, or the file system has no locks.
    """
    while True:
        file = open(path, "a+", encoding="utf-8", opener=_not_behind_a_link)  # noqa: SIM115 (it stays open)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file between our opening and locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    return file
        except BlockingIOError:
            if _is_held(file):
                file.close()
                return None
        except BaseException:
            file.close()
            raise
        file.close()


def _not_behind_a_link(path: str, flags: int) -> int:
    """Open a file itself: behind a link, `sign` would empty a file that is no lock."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def try_lock_in(folder: Path, name: str) -> IO[str] | None:
    """Like :func:`try_lock`, in a folder that is created if needed and that others may remove when it is empty."""
    for _ in range(TRIES):
        # Another process may remove the folder after this one's mkdir, or during it.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
            return try_lock(folder / name)
    folder.mkdir(parents=True, exist_ok=True)  # something else is in the way: its error says so
    return try_lock(folder / name)


def holder_of(path: Path) -> str:
    """What the holder of a lock wrote into the file, or ``unknown``."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. Asking does not make :func:`try_lock` of another process fail."""
    try:
        with path.open(encoding="utf-8") as file:
            return _is_held(file)
    except OSError:  # no such file, or a file system without locks
        return False


def _is_held(file: IO[str]) -> bool:
    """Whether a process holds the exclusive lock; the brief shared locks that this function takes do not count."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def sign(file: IO[str], name: str) -> None:
    os.ftruncate(file.fileno(), 0)
    # Unbuffered: a write that a full disk refused must not be repeated when the file is closed.
    os.write(file.fileno(), name.encode())
