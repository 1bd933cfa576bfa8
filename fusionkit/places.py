"""Where a store lies: a local folder, or an address on object storage (``s3://…``, ``gs://…``, any that fsspec knows).

Local places are :class:`pathlib.Path`, all others :class:`upath.UPath`; code that reads and lists treats both alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from upath import UPath

from fusionkit.errors import FusionkitError, StoreError, UsageError

Place = Path | UPath
AnyPlace = TypeVar("AnyPlace", Path, UPath, Place)
# Whose errors tell of the place, beside the operating system's.
BACKENDS = {"botocore", "aiobotocore", "s3fs", "gcsfs", "google", "aiohttp", "adlfs", "azure", "fsspec", "obstore"}
# The optional dependencies that bring each scheme, where they have a name of their own.
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}


def place_of(address: str | Place) -> Place:
    """The place that a path or address names.

    Raises:
        UsageError: a scheme that fsspec does not know, or whose package is not installed.
    """
    if isinstance(address, (Path, UPath)):
        return address
    scheme, sign, rest = address.partition("://")
    if not sign:
        return Path(address)
    if scheme in ("file", "local"):
        return Path(rest)
    try:
        # Another process may write the same store: a listing from a minute ago is no answer.
        place = UPath(address.rstrip("/"), use_listings_cache=False)
        _ = place.fs  # made when first asked for, and only then found to be missing
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        raise UsageError(
            f"addresses of {scheme}:// need a package that is not installed",
            received=str(error),
            remedy=f"pip install 'fusionkit[{extra}]'" if extra else "install the package that fsspec names",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"no such kind of address: {address}",
            expected="a folder, s3://BUCKET/NAME, gs://BUCKET/NAME or another address that fsspec knows",
            received=str(error),
        ) from error
    return place


@contextlib.contextmanager
def place_errors(place: Place) -> Iterator[None]:
    """Turn what a remote place's libraries raise (no network, no bucket, no right) into one clear error."""
    try:
        yield
    except FusionkitError:
        raise
    except Exception as error:
        ours = isinstance(error, OSError) or type(error).__module__.split(".")[0] in BACKENDS
        if isinstance(place, Path) or not ours:
            raise
        raise StoreError(
            f"cannot use {place}",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            remedy="check the address, the credentials (for s3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
            "AWS_ENDPOINT_URL) and the network",
        ) from error


def sizes_below(folder: Place) -> dict[str, int]:
    """Bytes of each file below a folder, by its path inside it; one listing where the place is remote."""
    if isinstance(folder, Path):
        return {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
    try:
        found = folder.fs.find(folder.path, detail=True)
    except FileNotFoundError:
        return {}
    prefix = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
    return {name[prefix:]: int(facts["size"]) for name, facts in found.items() if facts["type"] == "file"}


def read_all(folder: Place, names: list[str]) -> dict[str, bytes]:
    """The contents of some files below a folder; asked for together where the place is remote, absent ones left out."""
    if isinstance(folder, Path):
        there = {name: folder / name for name in names}
        return {name: path.read_bytes() for name, path in there.items() if path.is_file()}
    paths = {folder.fs._strip_protocol((folder / name).path): name for name in names}
    found = folder.fs.cat(list(paths), on_error="omit") if paths else {}
    return {paths[path]: content for path, content in found.items()}
