"""Paths and addresses: what is local, what is remote, what is neither; listing and reading of both."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from upath import UPath

from fusionkit.errors import DataError, StoreError, UsageError
from fusionkit.io.places import (
    Place,
    is_file,
    is_folder,
    is_there,
    place_errors,
    place_of,
    read_all,
    read_bytes,
    refusal,
    sizes_below,
)


@pytest.fixture
def memory() -> Iterator[Any]:
    """A folder in this process's memory."""
    yield place_of("memory://places/folder")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("stores/mine.store", "stores/mine.store"),
        ("/abs/x", "/abs/x"),
        ("file:///abs/x", "/abs/x"),
        ("local:///abs/x", "/abs/x"),
        (Path("there"), "there"),
        ("a:b", "a:b"),
    ],
)
def test_paths_and_addresses_of_files_are_local(address: Any, path: str) -> None:
    assert place_of(address) == Path(path)
    assert type(place_of(address)) is type(Path())


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the ~ of --out=~/runs as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place_of("~/runs") == tmp_path / "runs"


def test_other_addresses_are_remote() -> None:
    place = place_of("memory://a/b/")
    assert isinstance(place, UPath)
    assert not issubclass(type(place), Path)
    assert (str(place), place.name, str(place / "c")) == ("memory://a/b", "b", "memory://a/b/c")
    assert place_of(place) is place


NONE = {
    "foo://bucket/s": "no such kind of address",
    "S3://bucket/s": "no such kind of address",
    "://x": "no such kind of address",
    "folder/a://b": "no such kind of address",
    "memory://": "an address without a name",
    "s3://": "an address without a name",
    "memory://a/b*": "no address of one place",
    "memory://a/b[1]": "no address of one place",
    "memory://a/b?": "no address of one place",
    "~no-such-user/s": "no such home folder",
}


@pytest.mark.parametrize("address", NONE)
def test_what_names_no_one_place_is_wrong_use(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        place_of(address)
    assert caught.value.what == f"{NONE[address]}: {address}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("scheme", "package", "remedy"),
    [
        ("gs", "gcsfs", "pip install 'fusionkit[gs]'"),
        ("abfs", "adlfs", "pip install 'fusionkit[obstore]'"),
        ("sftp", "paramiko", "install the package it names"),
    ],
)
def test_a_scheme_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str, remedy: str
) -> None:
    for name in (package, "obstore", "obstore.fsspec"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(UsageError, match=f"addresses of {scheme}:// need a package") as caught:
        place_of(f"{scheme}://bucket/s")
    assert package in str(caught.value.received)
    assert caught.value.remedy == remedy


def test_obstore_serves_a_scheme_whose_own_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    place = place_of("az://container/s")
    assert isinstance(place, UPath)
    assert type(place.fs).__module__.startswith("obstore")
    assert (str(place), place.storage_options["retry_config"]) == ("az://container/s", {"max_retries": 0})


@pytest.mark.parametrize("where", ["local", "memory"])
def test_files_below_a_folder_are_listed_and_read(where: str, memory: Any, tmp_path: Path) -> None:
    folder: Place = tmp_path / "folder" if where == "local" else memory
    assert sizes_below(folder) == {}
    assert read_all(folder, ["a"]) == {}
    contents = {"a": b"1", "deep/er/b": b"22", "deep/c": b""}
    for name, content in {**contents, "../folder2/d": b"4"}.items():
        path = folder.parent / "folder2" / "d" if name.startswith("..") else folder / name
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert read_bytes(folder / "deep" / "er" / "b") == b"22"
    assert sizes_below(folder) == {"a": 1, "deep/er/b": 2, "deep/c": 0}
    assert read_all(folder, ["deep/er/b", "none", "a", "deep"]) == {"deep/er/b": b"22", "a": b"1"}
    assert read_all(folder, []) == {}
    assert [is_file(folder / name) for name in ("a", "deep", "deep/c", "none")] == [True, False, True, False]


@pytest.mark.parametrize("ask", [is_file, is_folder, is_there])
def test_a_local_place_that_cannot_be_looked_at_is_one_error(tmp_path: Path, ask: Callable[[Place], bool]) -> None:
    with pytest.raises(StoreError, match=r"^cannot read ") as caught:
        ask(tmp_path / ("x" * 300))
    assert caught.value.received == os.strerror(errno.ENAMETOOLONG)
    assert not ask(tmp_path / "file" / "below")


class SharedError(OSError):
    """As a backend's: an error of the operating system's kind."""


@pytest.mark.parametrize("error", [SharedError("no route"), PermissionError("no"), TimeoutError()])
def test_a_remote_place_that_says_no_is_one_error(memory: Any, error: Exception) -> None:
    with pytest.raises(StoreError, match=r"cannot use memory://places/folder") as caught, place_errors(memory):
        raise error
    assert caught.value.received == f"{type(error).__name__}: {error}".removesuffix(": ")
    assert caught.value.__cause__ is error


def test_errors_that_tell_of_something_else_pass_through(memory: Any, tmp_path: Path) -> None:
    for place, error in (
        (memory, ValueError("mine")), (memory, DataError("ours")), (tmp_path, PermissionError("local")),
        (memory, KeyboardInterrupt()),
    ):  # fmt: skip
        with pytest.raises(type(error)) as caught, place_errors(place):
            raise error
        assert caught.value is error
    assert refusal(tmp_path, PermissionError()) is None
    assert refusal(memory, KeyError("x")) is None


@pytest.mark.parametrize("ask", [is_file, sizes_below, lambda place: read_all(place, ["a"])])
def test_a_place_that_does_not_answer_is_not_an_empty_one(
    memory: Any, monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    """To fsspec's own ``isfile`` it is."""
    (memory / "a").write_bytes(b"1")

    def fail(*of: object, **how: object) -> None:
        raise ConnectionError("no route")

    for name in ("info", "find", "cat"):
        monkeypatch.setattr(fsspec.filesystem("memory", use_listings_cache=False), name, fail)
    assert memory.is_file() is False
    with pytest.raises(StoreError, match="cannot use memory://places/folder"):
        ask(memory)


def test_a_file_that_another_process_has_just_renamed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1234")
    (tmp_path / "gone").symlink_to(tmp_path / "renamed")  # a name in the listing, without a file
    assert sizes_below(tmp_path) == {"there": 4}
    assert read_all(tmp_path, ["there", "gone", "absent"]) == {"there": b"1234"}
