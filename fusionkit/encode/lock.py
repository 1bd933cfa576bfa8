"""One encoder a store.

On a local disk the kernel drops the lock with its process, however that ends. On object storage it is a lease: an
object that its holder renews, and that counts no more when it was not renewed for :data:`LEASE_SECONDS`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from upath import UPath

from fusionkit.errors import StoreError, UsageError
from fusionkit.files import disk_errors, parse_json, write_json
from fusionkit.places import Place

LEASE_SECONDS = 120.0
RENEW_SECONDS = 20.0


@contextmanager
def only_encoder(out: Place) -> Iterator[None]:
    """Hold the lock of the store at ``out``.

    Raises:
        UsageError: another process holds it; says which. FusionkitError: the disk is full.
    """
    path = out.with_name(f".{out.name}.lock")
    if isinstance(path, Path):
        with _flock(path, out):
            yield
    else:
        with _lease(path, out):
            yield


@contextmanager
def _flock(path: Path, out: Place) -> Iterator[None]:
    with disk_errors(path):
        file = _locked(path, out)
    with file:
        try:
            with disk_errors(path):
                os.ftruncate(file.fileno(), 0)
                # Unbuffered: what a full disk refused must not come up again when the file is closed.
                os.write(file.fileno(), _myself().encode())
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, out: Place) -> IO[str]:
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
                raise _held(out, file.read().strip() or "unknown") from None
        file.close()


@contextmanager
def _lease(path: UPath, out: Place) -> Iterator[None]:
    token = uuid.uuid4().hex
    _acquire(path, out, token)
    done = threading.Event()

    def renew() -> None:
        while not done.wait(RENEW_SECONDS):
            with suppress(Exception):  # a network that fails for a moment; the lease outlives several renewals
                if _read(path).get("token") == token:
                    write_json(path, _lease_of(token))

    beating = threading.Thread(target=renew, name="lease", daemon=True)
    beating.start()
    try:
        yield
    finally:
        done.set()
        beating.join()
        if _read(path).get("token") == token:
            with suppress(FileNotFoundError):
                path.fs.rm_file(path.path)


def _acquire(path: UPath, out: Place, token: str) -> None:
    found = _read(path)
    if _counts(found):
        raise _held(out, str(found["holder"]))
    refused: OSError | None = None
    if found:
        write_json(path, _lease_of(token))
    else:
        try:  # of two that see no lease one creates it, where the server keeps S3's conditional writes
            path.fs.pipe_file(path.path, json.dumps(_lease_of(token)).encode(), mode="create")
        except OSError as error:
            refused = error
    # Where it does not, or two found the same dead lease, both have written; the later one's stands.
    found = _read(path)
    if refused is not None and not found:  # not the other's lease: no bucket, or no right to write
        raise refused
    if found.get("token") != token:
        raise _held(out, str(found.get("holder", "unknown")))


def _counts(lease: dict[str, Any]) -> bool:
    """Whether a lease is still in force: not run out, nor left by a process of this machine that has ended."""
    if not isinstance(until := lease.get("until"), (int, float)) or until < time.time():
        return False
    if lease.get("host") == socket.gethostname() and isinstance(pid := lease.get("pid"), int):
        return Path(f"/proc/{pid}").exists() or not Path("/proc").exists()
    return True


def _read(path: UPath) -> dict[str, Any]:
    try:
        return parse_json(path.fs.cat_file(path.path), path)
    except (FileNotFoundError, StoreError):
        return {}


def _lease_of(token: str) -> dict[str, Any]:
    return {
        "holder": _myself(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "until": time.time() + LEASE_SECONDS,
        "token": token,
    }


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _held(out: Place, holder: str) -> UsageError:
    return UsageError(
        f"another process encodes into {out}",
        received=holder,
        remedy="wait for it, or stop it and run again: finished parts are kept",
    )
