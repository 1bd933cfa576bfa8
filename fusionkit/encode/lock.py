"""One encoder a store. The kernel drops the lock with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fusionkit.errors import UsageError
from fusionkit.files import disk_errors


@contextmanager
def only_encoder(out: Path) -> Iterator[None]:
    """Hold the lock of the store at ``out``.

    Raises:
        UsageError: another process holds it; says which. FusionkitError: the disk is full.
    """
    path = out.with_name(f".{out.name}.lock")
    with disk_errors(path):
        file = _locked(path, out)
    with file:
        try:
            with disk_errors(path):
                os.ftruncate(file.fileno(), 0)
                # Unbuffered: what a full disk refused must not come up again when the file is closed.
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, out: Path) -> IO[str]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file between our opening and locking it.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            with file:
                file.seek(0)
                raise UsageError(
                    f"another process encodes into {out}",
                    received=file.read().strip() or "unknown",
                    remedy="wait for it, or stop it and run again: finished parts are kept",
                ) from None
        file.close()
