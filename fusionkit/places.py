"""Where a store lies: a local folder, or an address that fsspec or obstore knows (``s3://…``, ``gs://…``, ``az://…``).

Local places are :class:`pathlib.Path`, all others :class:`upath.UPath`; code that reads and lists treats both alike.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from upath import UPath

from fusionkit.errors import FusionkitError, StoreError, UsageError

Place = Path | UPath
AnyPlace = TypeVar("AnyPlace", Path, UPath, Place)
# Whose errors tell of the place, beside the operating system's.
BACKENDS = {"botocore", "aiobotocore", "s3fs", "gcsfs", "google", "aiohttp", "adlfs", "azure", "fsspec", "obstore"}
PATTERN = set("*?[")  # what fsspec's operations on several files take for a pattern of names
# The optional dependencies that bring each scheme.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "obstore", "abfs": "obstore", "abfss": "obstore"}


def place_of(address: str | Place) -> Place:
    """The place that a path or address names.

    Raises:
        UsageError: a scheme that fsspec does not know or whose package is not installed, no name behind it, or a
            name that fsspec would take for a pattern.
    """
    if isinstance(address, (Path, UPath)):
        return address
    scheme, sign, rest = address.partition("://")
    if not sign:
        return Path(address)
    if scheme in ("file", "local"):
        return Path(rest)
    if not rest.strip("/"):
        raise _nameless(scheme, address)
    if PATTERN & set(rest):  # to fsspec, removing "a*/manifest.json" is removing that of every store whose name fits
        raise UsageError(
            f"no address of one place: {address}",
            expected="an address without " + " ".join(sorted(PATTERN)),
            received=address,
        )
    try:
        plain, name = _is_obstores(_filesystem(scheme)), address.rstrip("/")
        # Another process may write the same store: a listing from a minute ago is no answer.
        place = UPath(name) if plain else UPath(name, use_listings_cache=False)
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
        ) from error
    if not place.name:
        raise _nameless(scheme, address)
    return place


def _nameless(scheme: str, address: str) -> UsageError:
    return UsageError(f"an address without a name: {address}", expected=f"{scheme}://BUCKET/NAME", received=address)


def _filesystem(scheme: str) -> Any:
    """fsspec's class for a scheme, or obstore's where it is installed and the package that fsspec asks for is not.

    Raises:
        ImportError: neither is installed. ValueError: fsspec does not know the scheme.
    """
    try:
        return fsspec.get_filesystem_class(scheme or "none at all")
    except ImportError:
        with contextlib.suppress(ImportError):
            obstore = importlib.import_module("obstore.fsspec")
            if scheme in obstore.SUPPORTED_PROTOCOLS:
                obstore.register(scheme)
        return fsspec.get_filesystem_class(scheme)


def _is_obstores(filesystem: Any) -> bool:
    """Whether it is obstore's, which caches no listings and refuses options that it does not know."""
    return str(filesystem.__module__).startswith("obstore")


@contextlib.contextmanager
def place_errors(place: Place) -> Iterator[None]:
    """Turn what a remote place's libraries raise (no network, no bucket, no right) into one clear error."""
    try:
        yield
    except FusionkitError:
        raise
    except Exception as error:
        if (known := refusal(place, error)) is None:
            raise
        raise known from error


def refusal(place: Place, error: Exception) -> StoreError | None:
    """The error for a remote place that did not answer, or said no; None where ``error`` tells of something else."""
    ours = isinstance(error, OSError) or type(error).__module__.split(".")[0] in BACKENDS
    if isinstance(place, Path) or not ours:
        return None
    return StoreError(
        f"cannot use {place}",
        received=f"{type(error).__name__}: {error}".splitlines()[0],
        remedy="check the address, the credentials (for s3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_ENDPOINT_URL) and the network",
    )


def is_file(place: Place) -> bool:
    """Whether there is such a file; a place that does not answer is an error here, to pathlib and fsspec it is a No."""
    if isinstance(place, Path):
        return place.is_file()
    with place_errors(place):
        try:
            return bool(place.fs.info(place.path)["type"] == "file")
        except FileNotFoundError:
            return False


def read_bytes(place: Place) -> bytes:
    """The content of a file, in one request where it is remote and small."""
    return place.read_bytes() if isinstance(place, Path) else bytes(place.fs.cat_file(place.path))


def sizes_below(folder: Place) -> dict[str, int]:
    """Bytes of each file below a folder, by its path inside it; one listing where the place is remote."""
    if isinstance(folder, Path):
        return {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
    with place_errors(folder):
        try:
            found = folder.fs.find(folder.path, detail=True)
        except FileNotFoundError:
            return {}
    prefix = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
    return {name[prefix:]: int(facts["size"]) for name, facts in found.items() if facts["type"] == "file"}


def listed(folder: Place) -> list[Place]:
    """What lies in a folder or bucket, as it is now; nothing where there is none."""
    if isinstance(folder, Path):
        return list(folder.iterdir()) if folder.is_dir() else []
    with place_errors(folder):
        folder.fs.invalidate_cache()
        try:
            found = folder.fs.ls(folder.path, detail=False)
        except FileNotFoundError:  # a bucket in which nothing lies yet
            return []
    return [folder / name.rstrip("/").rpartition("/")[2] for name in found]


def read_all(folder: Place, names: list[str]) -> dict[str, bytes]:
    """The contents of some files below a folder; asked for together where the place is remote, absent ones left out."""
    if isinstance(folder, Path):
        wanted = {name: folder / name for name in names}
        return {name: path.read_bytes() for name, path in wanted.items() if path.is_file()}
    there = sizes_below(folder)  # one request tells of all that are absent
    paths = {folder.fs._strip_protocol((folder / name).path): name for name in names if name in there}
    with place_errors(folder):
        found = folder.fs.cat(list(paths)) if paths else {}
    return {paths[path]: content for path, content in found.items()}
