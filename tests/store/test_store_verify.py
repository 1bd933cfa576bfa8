"""Verification reads every byte: any one that changed is found, in the file where it is."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.store import verify_store

CHUNK = "states.zarr/train/hidden_states/c/3/0/0"


def faults(path: Path) -> dict[str, str]:
    return {checked.path: checked.fault for checked in verify_store(path) if checked.fault is not None}


def flipped(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def test_a_sound_store_has_no_fault_and_each_file_is_looked_at(known: Any) -> None:
    files = {file.relative_to(known.path).as_posix() for file in known.path.rglob("*") if file.is_file()}
    checked = list(verify_store(known.path))
    assert {file.path for file in checked} == files - {"manifest.json"}
    assert [file.fault for file in checked] == [None] * len(files - {"manifest.json"})
    assert [file.path for file in checked[:5]] == [f"states.zarr/train/hidden_states/c/{i}/0/0" for i in range(5)]


@pytest.mark.parametrize("at", [0, 1, 150, 299, 300, 303], ids=lambda at: f"byte-{at}")
def test_a_flipped_bit_of_a_chunk_is_found(fresh: Any, at: int) -> None:
    """Of 300 bytes of states or of the four of the checksum."""
    flipped(fresh.path / CHUNK, at)
    assert faults(fresh.path) == {CHUNK: "its bytes do not match its checksum"}


def test_files_that_cannot_be_read_are_named_and_the_others_are_checked(
    fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [fresh.path / CHUNK.replace("/3/", f"/{number}/") for number in range(5)]
    flipped(chunks[0], 0)
    shutil.rmtree(chunks[2].parent)
    chunks[2].parent.touch()
    chunks[3].unlink()
    chunks[3].symlink_to(chunks[3])
    opened = Path.open

    def fails(path: Path, *given: Any, **named: Any) -> Any:
        if path.suffix == ".parquet":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", fails)
    told = {2: errno.ENOTDIR, 3: errno.ELOOP}
    assert faults(fresh.path) == {
        CHUNK.replace("/3/", "/0/"): "its bytes do not match its checksum",
        **{CHUNK.replace("/3/", f"/{n}/"): f"cannot be read: {os.strerror(each)}" for n, each in told.items()},
        "examples/train.parquet": f"cannot be read: {os.strerror(errno.EIO)}",
    }


@pytest.mark.parametrize("size", [0, 1, 150, 303])
def test_a_cut_chunk_is_found(fresh: Any, size: int) -> None:
    file = fresh.path / CHUNK
    file.write_bytes(file.read_bytes()[:size])
    assert faults(fresh.path) == {CHUNK: f"{size} bytes instead of 304"}


def test_a_longer_chunk_is_found(fresh: Any) -> None:
    with (fresh.path / CHUNK).open("ab") as file:
        file.write(b"\0")
    assert faults(fresh.path) == {CHUNK: "305 bytes instead of 304"}


def test_a_deleted_chunk_is_found(fresh: Any) -> None:
    (fresh.path / CHUNK).unlink()
    assert faults(fresh.path) == {CHUNK: "missing"}


def test_a_sound_chunk_in_anothers_place_is_found(fresh: Any) -> None:
    shutil.copyfile(fresh.path / CHUNK.replace("/3/", "/1/"), fresh.path / CHUNK)
    assert faults(fresh.path) == {CHUNK: "it is not the chunk that was recorded"}


SMALL = [
    "examples/train.parquet",
    "states.zarr/zarr.json",
    "states.zarr/train/hidden_states/zarr.json",
    "states.zarr/train/row_offsets/c/0",
    "states.zarr/train/row_mask/c/0",
    "states.zarr/train/token_ids/zarr.json",
]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda file: flipped(file, 7), "its bytes do not match its checksum"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "its bytes do not match its checksum"),
        (lambda file: file.unlink(), "missing"),
    ],
    ids=["flipped", "cut", "deleted"],
)
def test_any_other_file_that_changed_is_found(fresh: Any, name: str, spoil: Callable[[Path], Any], fault: str) -> None:
    spoil(fresh.path / name)
    assert faults(fresh.path) == {name: fault}
