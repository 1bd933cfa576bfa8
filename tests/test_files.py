"""Durable files: absent, old or complete at any moment; the disk's refusals in plain words."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fusionkit.errors import FusionkitError, StoreError, UsageError
from fusionkit.io import files
from fusionkit.io.files import (
    aside_of,
    checked_bytes,
    disk_errors,
    read_json,
    sync_tree,
    write_durably,
    write_fields,
    write_json,
)

# A process whose files may not grow beyond 4 KiB: what a full disk does, without filling one.
FULL = """
import resource, signal, sys
from pathlib import Path
from fusionkit.errors import FusionkitError
from fusionkit.io import files
from fusionkit.io.files import write_durably
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_durably(Path(sys.argv[1]), b"new" * 10_000)
except FusionkitError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pieces_are_written_one_after_another_into_folders_made_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "chunk"
    write_durably(path, b"one", memoryview(b"two"), b"")
    assert path.read_bytes() == b"onetwo"
    assert names(path.parent) == ["chunk"]


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "socket"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """As root a rename would put a file into the place of /dev/null."""
    path = tmp_path / "place"
    if "fifo" in kind:
        os.mkfifo(tmp_path / "fifo")
        path = path if "link" in kind else tmp_path / "fifo"
    if "link" in kind:
        path.symlink_to(tmp_path / "fifo")
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    before = os.lstat(path)
    with pytest.raises(UsageError, match="is no file"):
        write_durably(path, b"new")
    assert os.path.samestat(before, os.lstat(path))


def test_of_a_link_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "file")
    write_durably(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "file").read_bytes() == b"new"


def test_a_folder_of_the_kernels_is_one_error() -> None:
    with pytest.raises(FusionkitError, match="cannot write /proc/nothing"):
        write_durably(Path("/proc/nothing"), b"new")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    write_durably(path, b"a long old content")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    write_durably(path, b"old")
    no_bytes: Any = "text"
    with pytest.raises(TypeError):
        write_durably(path, b"new", no_bytes)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["chunk"]


def test_a_full_disk_leaves_the_old_file_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    write_durably(path, b"old")
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"the disk is full: cannot write {path}")
    assert "run the same command again" in done.stdout
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["chunk"]


def test_a_reader_never_meets_half_a_file(tmp_path: Path) -> None:
    path, size, met = tmp_path / "chunk", 200_000, set()
    write_durably(path, b"0" * size)
    done = threading.Event()

    def write() -> None:
        for i in range(40):
            write_durably(path, *[str(i % 10).encode() * (size // 4)] * 4)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        content = path.read_bytes()
        met.add((len(content), len(set(content))))
    writer.join()
    assert met == {(size, 1)}


def test_a_process_of_the_same_number_in_another_container_is_not_written_over(tmp_path: Path) -> None:
    theirs = tmp_path / f".chunk.{os.getpid()}.partial"
    theirs.write_bytes(b"half of what another one writes")
    write_durably(tmp_path / "chunk", b"new")
    assert (tmp_path / "chunk").read_bytes() == b"new"
    assert theirs.read_bytes() == b"half of what another one writes"
    assert names(tmp_path) == sorted([theirs.name, "chunk"])


def test_what_is_written_aside_is_named_by_process_and_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asides = []
    for pid in (1, 1, 2):  # the last as after a fork
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        asides.append(aside_of(tmp_path / "chunk"))
    assert asides[0] == asides[1]
    for path in set(asides):
        path.touch()
    assert set(tmp_path.glob(".*.partial")) == set(asides)  # as whoever clears up after the dead looks for them
    parts = [path.name.split(".")[2].split("-") for path in asides]
    assert [number for number, _ in parts] == ["1", "1", "2"]
    assert parts[0][1] != parts[2][1]
    assert all(len(chance) == 8 for _, chance in parts)


@pytest.mark.parametrize("place", ["file/chunk", "file/deep/chunk", "folder"])
def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FusionkitError) as caught:
        write_durably(tmp_path / place, b"new")
    assert str(caught.value).startswith(f"cannot write {tmp_path / place}")
    assert (tmp_path / "file").read_bytes() == b"kept"
    assert names(tmp_path) == ["file", "folder"]


DISK = {
    errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk is full", errno.EFBIG: "the disk is full",
    errno.EACCES: "cannot write", errno.EROFS: "cannot write", errno.EPERM: "cannot write",
    errno.ENOTDIR: "cannot write", errno.EISDIR: "cannot write", errno.EEXIST: "cannot write",
    errno.EIO: "cannot write", errno.EBUSY: "cannot write", errno.EXDEV: "cannot write",
}  # fmt: skip


def test_each_refusal_of_the_disk_becomes_one_clear_error(tmp_path: Path) -> None:
    missing, seen = tmp_path / "not" / "there" / "yet", 0
    for number, start in DISK.items():
        with pytest.raises(FusionkitError) as caught, disk_errors(missing):
            raise OSError(number, os.strerror(number))
        assert str(caught.value).startswith(start)
        assert str(missing) in str(caught.value)
        assert os.strerror(number) in str(caught.value)
        seen += 1
    assert seen == 12


def test_a_full_disk_is_told_for_a_library_in_rust_too(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(FusionkitError, match="the disk is full"), disk_errors(tmp_path):
            save_file({"a": np.zeros(4096)}, tmp_path / "a.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), disk_errors(tmp_path):
        raise OSError(errno.EPIPE, "broken pipe")


def test_fields_come_back_as_they_were_written_a_line_each(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], 'a"': {"ü": "naïve\u2028line"}, "c": "x\ny"}
    write_fields(tmp_path / "run.json", value)
    assert read_json(tmp_path / "run.json") == value
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert text.split("\n")[0] == "{"
    assert text.count("\n") == 2 + len(value)
    assert "naïve" in text


def test_json_comes_back_as_it_was_written_and_stays_legible(tmp_path: Path) -> None:
    value = {"b": [1, 2.5, None, True], "a": {"ü": "naïve\u2028line"}}
    write_json(tmp_path / "manifest.json", value)
    assert read_json(tmp_path / "manifest.json") == value
    text = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    assert "naïve" in text
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    "content",
    [b"", b'{"a": 1', b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"a": ' * 100_000, b'{"a": "\x80"}'],
)
def test_damaged_json_is_a_store_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} is damaged")


def test_missing_json_is_a_store_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"manifest\.json is missing"):
        read_json(tmp_path / "manifest.json")


@pytest.mark.parametrize("read", [read_json, lambda path: checked_bytes(path, "", "the run's weights", "train again")])
def test_a_file_that_cannot_be_read_is_neither_damaged_nor_missing(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(StoreError, match=r"^cannot read ") as caught:
        read(tmp_path / ("x" * 300))
    assert caught.value.received == os.strerror(errno.ENAMETOOLONG)
    assert caught.value.remedy == "check the place and its permissions"


def test_syncing_reaches_nested_files_and_changes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"content")
    sync_tree(tmp_path)
    assert sorted(synced) == sorted((tmp_path, *tmp_path.rglob("*")))
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        sync_tree(tmp_path / "missing")


def test_new_folders_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    write_durably(tmp_path / "c" / "3" / "0", b"x")
    assert synced == [tmp_path, tmp_path / "c", tmp_path / "c" / "3"]
    write_durably(tmp_path / "c" / "3" / "1", b"x")
    assert synced[3:] == [tmp_path / "c" / "3"]
