"""Durable files: written to a temporary file, synced and renamed; and clear errors for a failing disk."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fusionkit.errors import FusionkitError, StoreError, UsageError
from fusionkit.io.object_storage import ask
from fusionkit.io.places import Place, place_errors, read_bytes, reading, unreadable

GIB = 1 << 30
PARTIAL = "partial"  # the end of the name of what is being written
REFUSALS = (
    errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO,
    errno.ENOENT,  # in a folder of the kernel, like /proc
    errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY,
    errno.EBUSY, errno.EXDEV,  # at a mount point
)  # fmt: skip


def write_durably(path: Place, *pieces: bytes | memoryview) -> None:
    """As :func:`write_pieces`, with the pieces as arguments."""
    write_pieces(path, pieces)


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file from pieces and sync it."""
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def write_pieces(
    path: Place,
    pieces: Iterable[bytes | memoryview],
    write: Callable[[Path, Iterable[bytes | memoryview]], None] = write_synced,
) -> None:
    """Write a file so that at any moment it is absent, old or complete, also after a power cut.

    An object on remote storage has this property anyway: it appears when its last byte is there. Locally, each piece is
    requested only when the one before it is written. If the path is a link, its target is replaced.

    Args:
        write: writes a new local file and syncs it.

    Raises:
        UsageError: the path is a device or a pipe, which a file would replace. FusionkitError: the disk is
            full, or the place cannot be written.
    """
    if not isinstance(path, Path):
        with place_errors(path):
            content = b"".join(pieces)
            ask(path, "pipe_file", path.path, content, size=len(content))
        return
    with disk_errors(path):
        path = path.resolve() if path.is_symlink() else path
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise UsageError(
                f"{path} is no file",
                expected="a new place, or a file to be replaced",
                received="a device or a pipe",
                remedy="choose another place",
            )
    aside = aside_of(path)
    with disk_errors(path):
        try:
            _make_durably(path.parent)
            write(aside, pieces)
            aside.replace(path)
            sync_folder(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def _make_durably(folder: Path) -> None:
    """Make a folder and those above it; without a sync of its parent a power cut may lose it and its content."""
    if not folder.is_dir():
        _make_durably(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def aside_of(path: Path, kind: str = PARTIAL) -> Path:
    """The temporary path, unique to this process, of what will become ``path``."""
    return path.with_name(f".{path.name}.{_name_of(os.getpid())}.{kind}")


@functools.cache
def _name_of(pid: int) -> str:
    # In containers on one volume every process may have id 1; after a fork the child needs another name.
    return f"{pid}-{secrets.token_hex(4)}"


def write_json(path: Place, value: Any) -> None:
    """Durable, indented JSON."""
    write_durably(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_fields(path: Place, value: Mapping[str, Any]) -> None:
    """Durable JSON, one field per line: written in half the time of fully indented JSON."""
    fields = (f"{json.dumps(name)}: {json.dumps(field, ensure_ascii=False)}" for name, field in value.items())
    write_durably(path, ("{\n " + ",\n ".join(fields) + "\n}\n").encode())


def read_json(path: Place) -> dict[str, Any]:
    """A JSON object from a file; StoreError where it is missing, cut off, unreadable or holds something else."""
    try:
        with reading(path):
            content = read_bytes(path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise StoreError(f"{path} is missing", remedy="run the command that makes it again") from None
    return parse_json(content, path)


def parse_json(content: bytes, path: Place) -> dict[str, Any]:
    """The JSON object that a file's content is; StoreError, with the path, where it is cut off or something else."""
    try:
        value = json.loads(content)
        json.dumps(value, ensure_ascii=False).encode()  # fails for what cannot be written again: lone surrogates
    except (ValueError, RecursionError) as error:
        raise damaged(path, "a JSON object", str(error)) from error
    if not isinstance(value, dict):
        raise damaged(path, "a JSON object", type(value).__name__)
    return value


def damaged(path: Place, expected: str | None, received: str | None, remedy: str | None = None) -> StoreError:
    """The error for a file that does not hold what was written."""
    return StoreError(f"{path} is damaged", expected=expected, received=received, remedy=remedy)


def checked_bytes(path: Place, sha256: str, what: str, remedy: str) -> bytes:
    """The content of a file.

    Args:
        sha256: the recorded hash of the content. what: the name of the content, for errors.

    Raises:
        StoreError: the file is missing, has another hash or cannot be read.
    """
    try:
        with place_errors(path):
            content = read_bytes(path)
    except OSError as error:
        known = unreadable(path, error) or damaged(path, what, error.strerror or str(error), remedy)
        raise known from error
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise damaged(path, f"{what} with sha256 {sha256}", f"{len(content):,} bytes with sha256 {found}", remedy)
    return content


def sha256_of(file: Place) -> str:
    """The SHA-256 of a file's bytes; a local file is not read into memory as a whole."""
    if not isinstance(file, Path):
        return hashlib.sha256(read_bytes(file)).hexdigest()
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable, or the content of a file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make each file below a folder durable: for files that a library wrote."""
    for path in [*folder.rglob("*"), folder]:
        sync_folder(path)


@contextlib.contextmanager
def disk_errors(
    path: Path, remedy: str = "free some space and run the same command again: finished work is kept"
) -> Iterator[None]:
    """Turn the operating system's refusal to write into one clear error; ``remedy`` is for a full disk."""
    try:
        yield
    except Exception as error:
        code = _code_of(error)
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
            raise FusionkitError(
                f"the disk is full: cannot write {path}",
                received=f"{os.strerror(code)}; {free / GIB:.2f} GiB free there",
                remedy=remedy,
            ) from error
        if code in REFUSALS:
            raise FusionkitError(
                f"cannot write {path}", received=os.strerror(code), remedy="check the place and its permissions"
            ) from error
        raise


def _code_of(error: Exception) -> int:
    """The operating system's code of an error, 0 without one. Libraries in Rust, such as safetensors, raise errors of
    their own whose text ends with the code.
    """
    told = re.search(r"\(os error (\d+)\)$", str(error))
    return (error.errno or 0) if isinstance(error, OSError) else int(told[1]) if told else 0
