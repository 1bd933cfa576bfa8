"""The lock that lets one encoder at a time work on a store.

On a local disk the kernel releases the lock when its process ends, however it ends. On object storage the lock is a
lease: an object that its holder renews. A lease that was not renewed for :data:`LEASE_SECONDS` is void.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from upath import UPath

from fusionkit.errors import SourceWarning, StoreError, UsageError
from fusionkit.io.files import disk_errors, parse_json
from fusionkit.io.locks import NO_LOCKS, holder_of, is_locked, sign, this_process, try_lock
from fusionkit.io.object_storage import UnansweredError, ask
from fusionkit.io.places import Place, listed

LEASE_SECONDS = 120.0
RENEW_SECONDS = 20.0


class HeldError(UsageError):
    """Another process holds the lock."""


@contextmanager
def only_encoder(out: Place, share: str | None = None, *, beside_shares: bool = False) -> Iterator[Callable[[], None]]:
    """Hold the lock of the store at ``out``, or that of a share of its parts. Warns of a file system without locks.

    Args:
        share: ``3-of-16``. beside_shares: take the store's lock while other processes encode shares of its parts; the
            caller must then write no part.

    Yields:
        a function that raises :class:`StoreError` if another process has taken the lock; call it before writing.

    Raises:
        HeldError: another process holds it; the message names it. FusionkitError: the disk is full.
    """
    path = out.with_name(f".{out.name}.lock" if share is None else f"{_share_lock_prefix(out)}{share}.lock")
    with _flock(path, out) if isinstance(path, Path) else _lease(path, out) as held:
        if share is None and not beside_shares and held is not _unlocked:
            _refuse_shares(out)
        yield held


def _share_lock_prefix(out: Place) -> str:
    return f".{out.name}.share-"


def _refuse_shares(out: Place) -> None:
    """Raise HeldError where another process encodes a share of the parts."""
    for path in _share_locks(out):
        if isinstance(path, Path):
            if (file := try_lock(path)) is None:
                raise _held(out, holder_of(path))
            with file:  # nobody holds it: it was left by a killed process
                path.unlink(missing_ok=True)
        elif (holder := _holder(path)) is not None:
            raise _held(out, holder)


def refuse_other_shares(out: Place, of: int) -> None:
    """Raise HeldError where another process encodes a share of another number of shares. Such shares are other cuts of
    the same parts, so that two processes would write one part.
    """
    for path in _share_locks(out):
        if not path.name.endswith(f"-of-{of}.lock") and (holder := _holder(path)) is not None:
            share = path.name.removeprefix(_share_lock_prefix(out)).removesuffix(".lock").replace("-of-", "/")
            raise HeldError(
                f"another process encodes the share {share} of {out}",
                expected=f"shares of {of} alone",
                received=holder,
                remedy="give the same number of shares, or wait for that process",
            )


def _share_locks(out: Place) -> list[Place]:
    """The locks of the shares of a store's parts."""
    return [path for path in listed(out.parent) if path.name.startswith(_share_lock_prefix(out))]


def encoder_at(out: Place) -> str | None:
    """The processes that hold the lock of the store at ``out`` or of a share of it; None where there are none."""
    found = [_holder(path) for path in (out.with_name(f".{out.name}.lock"), *_share_locks(out))]
    return ", ".join(name for name in found if name is not None) or None


def _holder(path: Place) -> str | None:
    if isinstance(path, Path):
        return holder_of(path) if is_locked(path) else None
    lease = _read(path)
    return str(lease.get("holder", "unknown")) if _in_force(lease) else None


def _unlocked() -> None:
    """The check where there are no locks: none can be lost."""


@contextmanager
def _flock(path: Path, out: Place) -> Iterator[Callable[[], None]]:
    known = True
    try:
        with disk_errors(path):
            file = try_lock(path)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        known = False
    if not known:
        path.unlink(missing_ok=True)
        text = f"{path.parent} lies on a file system without locks: start no second encode into {out.name}"
        warnings.warn(text, SourceWarning, stacklevel=2)
        yield _unlocked
        return
    if file is None:
        raise _held(out, holder_of(path))
    with file:
        try:
            with disk_errors(path):
                sign(file, this_process())
            yield lambda: None
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _lease(path: UPath, out: Place) -> Iterator[Callable[[], None]]:
    token = uuid.uuid4().hex
    until = _acquire(path, out, token)
    done, lost = threading.Event(), threading.Event()

    def renew(tries: int | None = None) -> None:
        nonlocal until
        if _read(path, tries).get("token") != token:
            lost.set()
        else:
            lease = _lease_of(token)
            _write(path, lease, tries=tries)
            until = lease["until"]

    def beat() -> None:
        while not done.wait(RENEW_SECONDS):
            with suppress(Exception):  # the network may fail for a moment; the lease outlives several missed renewals
                renew(tries=1)

    def held() -> None:
        if until < time.time():  # this machine slept, or the network failed for long
            renew()
        if lost.is_set():
            raise StoreError(
                f"another process has taken over {out}",
                expected=f"a lease that {this_process()} renews",
                received=str(_read(path).get("holder", "no lease any more")),
                remedy="run the same command again when that process has ended: finished parts are kept",
            )

    beating = threading.Thread(target=beat, name="lease", daemon=True)
    beating.start()
    answers = True
    try:
        yield held
    except UnansweredError:
        answers = False  # asking the same server again would only keep the user waiting
        raise
    finally:
        done.set()
        if answers:
            beating.join()
            with suppress(Exception):  # keep the error that stopped the work; the lease expires anyway
                if _read(path, tries=1).get("token") == token:
                    ask(path, "rm_file", path.path, tries=1)


def _acquire(path: UPath, out: Place, token: str) -> float:
    """Acquire the lease, or raise HeldError; returns the time at which it expires."""
    found, lease = _read(path), _lease_of(token)
    if _in_force(found):
        raise _held(out, str(found.get("holder", "unknown")))
    if not found:
        # If two see no lease, only one can create it, on servers with S3's conditional writes; some have none.
        with suppress(OSError, NotImplementedError):
            _write(path, lease, mode="create")
        found = _read(path)
    if not found or not _in_force(found):
        _write(path, lease)
    # If two found the same void lease, both have written, and the later one's lease holds.
    found = _read(path)
    if found.get("token") != token:
        raise _held(out, str(found.get("holder", "unknown")))
    return float(lease["until"])


def _in_force(lease: dict[str, Any]) -> bool:
    """Whether a lease is still in force: not expired, and not left by an ended process of this machine."""
    if not isinstance(until := lease.get("until"), (int, float)) or until < time.time():
        return False
    if lease.get("machine") == _machine() and isinstance(pid := lease.get("pid"), int):
        return _is_running(pid)
    return True


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc").exists()
    return state not in "ZX"  # a zombie, or dead


def _write(path: UPath, lease: dict[str, Any], *, tries: int | None = None, **named: str) -> None:
    content = json.dumps(lease).encode()
    ask(path, "pipe_file", path.path, content, size=len(content), tries=tries, **named)


def _read(path: UPath, tries: int | None = None) -> dict[str, Any]:
    with suppress(FileNotFoundError):
        content = ask(path, "cat_file", path.path, tries=tries)
        with suppress(StoreError):
            return parse_json(content, path)
    return {}


def _lease_of(token: str) -> dict[str, Any]:
    return {
        "holder": this_process(),
        "machine": _machine(),
        "pid": os.getpid(),
        "until": time.time() + LEASE_SECONDS,
        "token": token,
    }


def _machine() -> str:
    """The name of the scope in which process ids are valid: a machine since its boot, or a container on it.

    The host name is not enough: many machines may have the same, and a container may have its host's.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _held(out: Place, holder: str) -> HeldError:
    return HeldError(
        f"another process encodes into {out}",
        received=holder,
        remedy="wait for it, or stop it and run again: finished parts are kept",
    )
