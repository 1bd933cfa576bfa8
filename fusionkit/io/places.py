"""The place of a store: a local folder or an address that fsspec or obstore knows (``s3://…``, ``gs://…``, ``az://…``).

Local places are :class:`pathlib.Path`, all others :class:`upath.UPath`; code that reads and lists treats both alike.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from upath import UPath

from fusionkit.errors import FusionkitError, StoreError, UsageError, first_line
from fusionkit.io.object_storage import CREDENTIALS, Request, UnansweredError, ask, ask_all, options_of

Place = Path | UPath
AnyPlace = TypeVar("AnyPlace", Path, UPath, Place)
# Packages whose errors are about the place, besides the operating system's errors.
BACKENDS = {"botocore", "aiobotocore", "s3fs", "gcsfs", "google", "aiohttp", "adlfs", "azure", "fsspec", "obstore"}
PATTERN = set("*?[")  # fsspec's operations on several files read these as a glob pattern
READS_AT_ONCE, WRITES_AT_ONCE = 64, 10  # concurrent requests to one place
REMOVED_AT_ONCE = 1000  # objects that one S3 request can remove
# The extra that installs each scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "obstore", "abfs": "obstore", "abfss": "obstore"}


def place_of(address: str | Place) -> Place:
    """The place that a path or address names; ``~`` at the beginning of a text is the home folder.

    UsageError for the home of an unknown user, a scheme that fsspec does not know or whose package is not installed, an
    address without a name, a name that fsspec would read as a pattern, or limits that are not numbers.
    """
    if isinstance(address, (Path, UPath)):
        return address
    scheme, sign, rest = address.partition("://")
    if not sign:
        try:
            return Path(address).expanduser()
        except RuntimeError as error:
            raise UsageError(
                f"no such home folder: {address}", received=first_line(error), remedy="write the whole path"
            ) from error
    if scheme in ("file", "local"):
        return Path(rest)
    if not rest.strip("/"):
        raise _nameless(scheme, address)
    if PATTERN & set(rest):  # fsspec would remove "a*/manifest.json" of every store that matches
        raise UsageError(
            f"no address of one place: {address}",
            expected="an address without " + " ".join(sorted(PATTERN)),
            received=address,
            remedy="rename the folder",
        )
    try:
        # Another process may write the same store, so cached listings would be out of date.
        place: UPath = UPath(address.rstrip("/"), **options_of(_filesystem(scheme)))
    except ImportError as error:
        raise UsageError(
            f"addresses of {scheme}:// need a package that is not installed",
            received=str(error),
            remedy=f"pip install 'fusionkit[{EXTRAS[scheme]}]'" if scheme in EXTRAS else "install the package it names",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"no such kind of address: {address}",
            expected="a folder, s3://BUCKET/NAME, gs://BUCKET/NAME or another address that fsspec knows",
            received=str(error),
            remedy="check the address",
        ) from error
    if not place.name:
        raise _nameless(scheme, address)
    return place


def _nameless(scheme: str, address: str) -> UsageError:
    return UsageError(
        f"an address without a name: {address}",
        expected=f"{scheme}://BUCKET/NAME",
        received=address,
        remedy="add the name of a folder",
    )


def _filesystem(scheme: str) -> Any:
    """fsspec's class for a scheme, or obstore's where it is installed and the package that fsspec asks for is not.

    ImportError where neither is installed, ValueError for a scheme that fsspec does not know.
    """
    try:
        return fsspec.get_filesystem_class(scheme or "none at all")
    except ImportError:
        with contextlib.suppress(ImportError):
            obstore = importlib.import_module("obstore.fsspec")
            if scheme in obstore.SUPPORTED_PROTOCOLS:
                obstore.register(scheme)
        return fsspec.get_filesystem_class(scheme)


@contextlib.contextmanager
def place_errors(place: Place) -> Iterator[None]:
    """Turn the exceptions of a remote place's libraries (no network, no bucket, no permission) into one clear error."""
    try:
        yield
    except FusionkitError:
        raise
    except Exception as error:
        if (known := refusal(place, error)) is None:
            raise
        raise known from error


def refusal(place: Place, error: Exception) -> StoreError | None:
    """The error for a remote place that did not answer or refused; None if ``error`` has another cause."""
    if isinstance(error, UnansweredError):
        return error
    ours = isinstance(error, OSError) or type(error).__module__.split(".")[0] in BACKENDS
    if isinstance(place, Path) or not ours:
        return None
    return StoreError(f"cannot use {place}", received=first_line(error, kind=True), remedy=CREDENTIALS)


class UnreadableError(StoreError):
    """The operating system does not let a local file or folder be read, so nothing is known of its content."""


def unreadable(place: Place, error: Exception) -> UnreadableError | None:
    """The error for a local file or folder that the operating system does not let be read; None if the place is remote,
    there is no such file, or ``error`` has another cause.
    """
    if not isinstance(place, Path) or not isinstance(error, OSError):
        return None
    missing = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
    if missing or error.errno in (None, errno.EINVAL):  # EINVAL: of a position that a damaged file names
        return None
    return UnreadableError(
        f"cannot read {place}", received=error.strerror, remedy="check the place and its permissions"
    )


@contextlib.contextmanager
def reading(place: Place) -> Iterator[None]:
    """Turn the operating system's refusal to read a local file or folder into one clear error."""
    try:
        yield
    except OSError as error:
        if (known := unreadable(place, error)) is None:
            raise
        raise known from error


def is_file(place: Place) -> bool:
    """Whether there is such a file. A place that does not answer is an error; pathlib and fsspec would return False."""
    return stat.S_ISREG(_mode(place)) if isinstance(place, Path) else _facts(place).get("type") == "file"


def is_folder(place: Place) -> bool:
    """Whether there is such a folder, or anything below such a name; errors as in :func:`is_file`."""
    return stat.S_ISDIR(_mode(place)) if isinstance(place, Path) else _facts(place).get("type") == "directory"


def is_there(place: Place) -> bool:
    """Whether there is such a file or folder; errors as in :func:`is_file`."""
    return _mode(place) > 0 if isinstance(place, Path) else bool(_facts(place))


def _mode(place: Path) -> int:
    """The mode of a local file or folder, 0 if there is none. pathlib's own questions answer False to any error from
    Python 3.14 on.
    """
    try:
        with reading(place):
            return place.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character in the name
        return 0


def size_of(file: Place) -> int:
    return file.stat().st_size if isinstance(file, Path) else int(_facts(file)["size"])


def _facts(place: UPath) -> dict[str, Any]:
    """fsspec's facts about a file or folder, its ``type`` among them; empty where there is none."""
    with place_errors(place):
        try:
            return dict(ask(place, "info", place.path))
        except FileNotFoundError:
            return {}


def read_bytes(place: Place) -> bytes:
    """The content of a file, in one request where it is remote and small."""
    return place.read_bytes() if isinstance(place, Path) else bytes(ask(place, "cat_file", place.path, size=None))


def remove(place: Place) -> None:
    """Remove a file if it exists."""
    if isinstance(place, Path):
        place.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        ask(place, "rm", place.path)


def remove_below(folder: UPath, names: list[str]) -> None:
    pieces = [names[at : at + REMOVED_AT_ONCE] for at in range(0, len(names), REMOVED_AT_ONCE)]
    paths = [[(folder / name).path for name in piece] for piece in pieces]
    ask_all(folder, [Request("rm", (piece,), size=None) for piece in paths], at_once=3)


def upload(files: dict[str, Path], folder: UPath) -> None:
    requests = [
        Request("put_file", (str(file), (folder / name).path), size=file.stat().st_size) for name, file in files.items()
    ]
    ask_all(folder, requests, at_once=WRITES_AT_ONCE)


def sizes_below(folder: Place) -> dict[str, int]:
    """Bytes of each file below a folder, by its path inside it; one listing if the place is remote."""
    if isinstance(folder, Path):
        sizes = ((path.relative_to(folder).as_posix(), _size_if_file(path)) for path in folder.rglob("*"))
        return {name: size for name, size in sizes if size is not None}
    with place_errors(folder):
        try:
            found = ask(folder, "find", folder.path, detail=True, size=None)
        except FileNotFoundError:
            return {}
    prefix = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
    return {name[prefix:]: int(facts["size"]) for name, facts in found.items() if facts["type"] == "file"}


def _size_if_file(path: Path) -> int | None:
    """The bytes of a local file; None for anything else, also for a file that another process has just renamed."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = path.stat()
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def listed(folder: Place) -> list[Place]:
    """The current content of a folder or bucket; empty where there is none."""
    if isinstance(folder, Path):
        with reading(folder):
            return list(folder.iterdir()) if folder.is_dir() else []
    with place_errors(folder):
        folder.fs.invalidate_cache()
        try:
            found = ask(folder, "ls", folder.path, detail=False, size=None)
        except FileNotFoundError:  # an empty bucket
            return []
    return [folder / name.rstrip("/").rpartition("/")[2] for name in found]


def read_all(folder: Place, names: list[str]) -> dict[str, bytes]:
    """The contents of some files below a folder, without absent ones; concurrent requests if the place is remote."""
    if isinstance(folder, Path):
        contents = {}
        for name in names:  # another process may remove files meanwhile
            with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                contents[name] = (folder / name).read_bytes()
        return contents
    there = sizes_below(folder)  # one request finds all absent files
    wanted_there = [name for name in names if name in there]
    requests = [Request("cat_file", ((folder / name).path,), size=None) for name in wanted_there]
    with place_errors(folder):
        return dict(zip(wanted_there, ask_all(folder, requests, at_once=READS_AT_ONCE), strict=True))
