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
from typing import IO, Any

from upath import UPath

from fusionkit.errors import FusionkitWarning, StoreError, UsageError
from fusionkit.io.files import disk_errors, parse_json
from fusionkit.io.locks import NO_LOCKS, holder_of, is_locked, sign, this_process, try_lock
from fusionkit.io.object_storage import UnansweredError, ask
from fusionkit.io.places import Place, listed

LEASE_SECONDS = 120.0
RENEW_SECONDS = 20.0
SETTLE_SECONDS = 2.0  # longer than most requests: by then whoever found the same void lease has written its own


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
    path = _lock_path(out) if share is None else out.with_name(f"{_share_lock_prefix(out)}{share}.lock")
    with _flock(path, out) if isinstance(path, Path) else _lease(path, out) as check:
        if share is None and not beside_shares and check is not None:
            _refuse_shares(out)
        yield check or _never_lost


def _lock_path(out: Place) -> Place:
    return out.with_name(f".{out.name}.lock")


def _share_lock_prefix(out: Place) -> str:
    return f".{out.name}.share-"


def _share_locks(out: Place) -> list[Place]:
    """The locks of the shares of a store's parts."""
    return [path for path in listed(out.parent) if path.name.startswith(_share_lock_prefix(out))]


def _refuse_shares(out: Place) -> None:
    """Raise HeldError where another process encodes a share of the parts."""
    for path in _share_locks(out):
        if isinstance(path, Path):
            with disk_errors(path):
                file = try_lock(path)
            if file is None:
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


def encoder_at(out: Place) -> str | None:
    """The processes that hold the lock of the store at ``out`` or of a share of it; None where there are none."""
    found = [_holder(path) for path in (_lock_path(out), *_share_locks(out))]
    return ", ".join(name for name in found if name is not None) or None


def refuse_held(out: Place) -> None:
    """Raise HeldError where :func:`encoder_at` finds a process; no lock is taken."""
    if (holder := encoder_at(out)) is not None:
        raise _held(out, holder)


def _holder(path: Place) -> str | None:
    """The process that holds a lock; None if no process does."""
    if isinstance(path, Path):
        return holder_of(path) if is_locked(path) else None
    lease = _read(path)
    return _name_in(lease) if _in_force(lease) else None


def _held(out: Place, holder: str) -> HeldError:
    return HeldError(
        f"another process encodes into {out}",
        received=holder,
        remedy="wait for it, or stop it and run again: finished parts are kept",
    )


def _never_lost() -> None:
    """The check of a local lock, which no other process can take over."""


@contextmanager
def _flock(path: Path, out: Place) -> Iterator[Callable[[], None] | None]:
    """Hold a local lock; yields its check, or None on a file system without locks."""
    file = _locked_file(path, out)
    if file is None:
        yield None
        return
    with file:
        try:
            with disk_errors(path):
                sign(file, this_process())
            yield _never_lost
        finally:
            path.unlink(missing_ok=True)


def _locked_file(path: Path, out: Place) -> IO[str] | None:
    """The locked file; None, after a warning, on a file system without locks. HeldError if another process has it."""
    try:
        with disk_errors(path):
            file = try_lock(path)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        text = f"{path.parent} lies on a file system without locks: start no second encode into {out.name}"
        warnings.warn(text, FusionkitWarning, stacklevel=2)
        return None
    if file is None:
        raise _held(out, holder_of(path))
    return file


@contextmanager
def _lease(path: UPath, out: Place) -> Iterator[Callable[[], None] | None]:
    """Hold a lease, which a thread renews; yields its check."""
    lease, done, answers = _Lease(path, out), threading.Event(), True

    def keep() -> None:
        while not done.wait(RENEW_SECONDS):
            with suppress(Exception):  # the network may fail for a moment; the lease outlives several missed renewals
                lease.renew(tries=1)

    lease.acquire()
    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield lease.check
    except UnansweredError:
        answers = False  # asking the same server again would only keep the user waiting
        raise
    finally:
        done.set()
        if answers:
            keeper.join()
            with suppress(Exception):  # keep the error that stopped the work; the lease expires anyway
                lease.release()


class _Lease:
    """This process's lease on the store ``out``: the object at ``path``."""

    def __init__(self, path: UPath, out: Place) -> None:
        self._path, self._out, self._token = path, out, uuid.uuid4().hex
        self._until = 0.0  # when it expires, in seconds since 1970
        self._is_lost = False
        self._asking = threading.Lock()  # threads that write parts look at it too

    def acquire(self) -> None:
        """Write the lease. Raises HeldError if another process has one in force."""
        found = _read(self._path)
        if _in_force(found):
            raise _held(self._out, _name_in(found))
        if not found:
            # If two see no lease, only one can create it, on servers with S3's conditional writes; some have none.
            with suppress(OSError, NotImplementedError):
                self._write(mode="create")
            found = _read(self._path)
        if not _in_force(found):
            self._write()
            # If two found the same void lease, both write it, and the later one's holds: wait for the other's write.
            time.sleep(SETTLE_SECONDS)
        found = _read(self._path)
        if found.get("token") != self._token:
            raise _held(self._out, _name_in(found))
        self._until = float(found["until"])  # also where the answer to this process's write was lost

    def renew(self, tries: int | None = None) -> None:
        """Extend the lease, unless another process has taken it over."""
        with self._asking:
            if self._is_ours(tries):
                self._write(tries)
            else:
                self._is_lost = True

    def check(self) -> None:
        """Raise StoreError if another process has taken the lease over."""
        if self._until < time.time():  # this machine slept, or the network failed for long
            self.renew()
        if self._is_lost:
            raise StoreError(
                f"another process has taken over {self._out}",
                expected=f"a lease that {this_process()} renews",
                received=str(_read(self._path).get("holder", "no lease any more")),
                remedy="run the same command again when that process has ended: finished parts are kept",
            )

    def release(self) -> None:
        """Remove the lease, unless another process has taken it over."""
        if self._is_ours(tries=1):
            ask(self._path, "rm_file", self._path.path, tries=1)

    def _is_ours(self, tries: int | None) -> bool:
        return bool(_read(self._path, tries).get("token") == self._token)

    def _write(self, tries: int | None = None, **named: str) -> None:
        until = time.time() + LEASE_SECONDS
        holder = {"holder": this_process(), "machine": _machine(), "pid": os.getpid()}
        content = json.dumps({**holder, "until": until, "token": self._token}).encode()
        ask(self._path, "pipe_file", self._path.path, content, size=len(content), tries=tries, **named)
        self._until = until


def _read(path: UPath, tries: int | None = None) -> dict[str, Any]:
    """The fields of a lease; empty if there is none, or its object is damaged."""
    with suppress(FileNotFoundError):
        content = ask(path, "cat_file", path.path, tries=tries)
        with suppress(StoreError):
            return parse_json(content, path)
    return {}


def _name_in(lease: dict[str, Any]) -> str:
    return str(lease.get("holder", "unknown"))


def _in_force(lease: dict[str, Any]) -> bool:
    """Whether a lease is still in force: not expired, and not left by an ended process of this machine."""
    until, pid = lease.get("until"), lease.get("pid")
    if not isinstance(until, (int, float)) or until < time.time():
        return False
    if isinstance(pid, int) and lease.get("machine") == _machine():
        return _is_running(pid)
    return True


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc").exists()
    return state not in "ZX"  # a zombie, or dead


def _machine() -> str:
    """The name of the scope in which process ids are valid: a machine since its boot, or a container on it.

    The host name is not enough: many machines may have the same, and a container may have its host's.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()
