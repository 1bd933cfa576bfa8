"""Damage in a table: what verify names, and what a second encode or a repair mends, to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.encode.repair import damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, StoppedError, StoreError
from fusionkit.store import is_complete, open_store, verify_store

Encoding = Callable[..., Any]
Same = Callable[[Path], None]
Spoil = Callable[[Path], object]
CHUNK = "states.zarr/train/hidden_states/c/{}/0/0"
RECORD = "parts/train-0000{}.json"


def cut(file: Path, keep: int = 40) -> None:
    file.write_bytes(file.read_bytes()[:keep])


def torn(file: Path) -> None:
    """A power cut after the size was known and before the last pages were: zeros to the end."""
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2))


def flipped(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def other_record(store: Path, **fields: Any) -> None:
    file = store / RECORD.format(1)
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def named(store: Path) -> dict[str, str]:
    return {checked.path: checked.fault for checked in verify_store(store) if checked.fault is not None}


# Of an unfinished store whose first four parts are done: which of them are done again.
UNFINISHED: dict[str, tuple[Spoil, set[int]]] = {
    "nothing": (lambda store: None, set()),
    "a cut chunk": (lambda store: cut(store / CHUNK.format(1)), {1}),
    "a torn chunk": (lambda store: torn(store / CHUNK.format(1)), {1}),
    "a record without its chunk": (lambda store: (store / CHUNK.format(1)).unlink(), {1}),
    "a chunk without its record": (lambda store: (store / RECORD.format(1)).unlink(), {1}),
    "another part's chunk": (lambda store: shutil.copy(store / CHUNK.format(0), store / CHUNK.format(1)), {1}),
    "another part's record": (lambda store: shutil.copy(store / RECORD.format(0), store / RECORD.format(1)), {1}),
    "a cut record": (lambda store: cut(store / RECORD.format(1)), {1}),
    "a record of another chunk": (lambda store: other_record(store, chunk=2), {1}),
    "a record of more rows": (lambda store: other_record(store, rows=1000), {1}),
    "a record without a number of sub-tokens": (lambda store: other_record(store, tokens="7"), {1}),
    "a record of endless work": (lambda store: other_record(store, seconds=float("inf")), {1}),
    "no records": (lambda store: shutil.rmtree(store / "parts"), {0, 1, 2, 3}),
    "no chunks": (lambda store: shutil.rmtree(store / "states.zarr/train/hidden_states/c"), {0, 1, 2, 3}),
}


@pytest.fixture(scope="session")
def begun(encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of which four parts are done; not to be changed."""
    out = tmp_path_factory.mktemp("stores") / "begun"
    asked = iter([False] * 4 + [True])
    with pytest.raises(StoppedError):
        encoded(out, stop=lambda: next(asked))
    assert sorted(file.name for file in (out / "parts").iterdir()) == [f"train-0000{part}.json" for part in range(4)]
    return out


@pytest.mark.parametrize("damage", UNFINISHED)
def test_an_unfinished_store_does_the_damaged_parts_again_and_only_those(
    begun: Path, encoded: Encoding, assert_same: Same, tmp_path: Path, damage: str
) -> None:
    spoil, again = UNFINISHED[damage]
    out = Path(shutil.copytree(begun, tmp_path / "s"))
    before = {part: (out / CHUNK.format(part)).stat().st_mtime_ns for part in range(4)}
    spoil(out)
    assert encoded(out).outcome == "resumed"
    assert {part for part in range(4) if (out / CHUNK.format(part)).stat().st_mtime_ns != before[part]} == again
    assert_same(out)
    assert named(out) == {}


# Of a finished store: what verify names, and whether a repair mends it.
MISMATCH = "its bytes do not match its checksum"
FINISHED: dict[str, tuple[Spoil, dict[str, str], bool]] = {
    "a flipped bit": (lambda s: flipped(s / CHUNK.format(2)), {CHUNK.format(2): MISMATCH}, True),
    "a torn chunk": (lambda s: torn(s / CHUNK.format(2)), {CHUNK.format(2): MISMATCH}, True),
    "a cut chunk": (lambda s: cut(s / CHUNK.format(2)), {CHUNK.format(2): "40 bytes instead of "}, True),
    "a deleted chunk": (lambda s: (s / CHUNK.format(2)).unlink(), {CHUNK.format(2): "missing"}, True),
    "two chunks exchanged": (
        lambda s: shutil.copy(s / CHUNK.format(1), s / CHUNK.format(2)),
        {CHUNK.format(2): "it is not the chunk that was recorded"},
        True,
    ),
    "two chunks": (
        lambda s: [spoil(s / CHUNK.format(part)) for part, spoil in ((0, torn), (3, Path.unlink))],
        {CHUNK.format(0): MISMATCH, CHUNK.format(3): "missing"},
        True,
    ),
    "an array's metadata": (
        lambda s: flipped(s / "states.zarr/train/hidden_states/zarr.json"),
        {"states.zarr/train/hidden_states/zarr.json": MISMATCH},
        False,
    ),
    "offsets": (
        lambda s: torn(s / "states.zarr/train/row_offsets/c/0"),
        {"states.zarr/train/row_offsets/c/0": MISMATCH},
        False,
    ),
    "examples": (lambda s: (s / "examples/train.parquet").unlink(), {"examples/train.parquet": "missing"}, False),
}


@pytest.mark.parametrize("damage", FINISHED)
def test_verify_names_each_damaged_file_and_what_can_be_mended_is(
    whole: Path, encoded: Encoding, encoder: Encoder, assert_same: Same, tmp_path: Path, damage: str
) -> None:
    spoil, expected, mendable = FINISHED[damage]
    out = Path(shutil.copytree(whole, tmp_path / "s"))
    spoil(out)
    found = named(out)
    assert set(found) == set(expected)
    assert all(found[path].startswith(fault) for path, fault in expected.items())
    if mendable:
        assert repair(out, damaged_parts(out, found), encoder) == []
    else:
        with pytest.raises(StoreError, match="cannot be repaired from the store alone"):
            damaged_parts(out, found)
        assert encoded(out, overwrite=True).outcome == "encoded"
    assert named(out) == {}
    assert_same(out)


@pytest.mark.parametrize("keep", [0, 100, -2])
def test_a_truncated_manifest_is_named_by_all_and_overwriting_mends_it(
    whole: Path, encoded: Encoding, assert_same: Same, tmp_path: Path, keep: int
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "s"))
    cut(out / "manifest.json", keep)
    for ask in (named, open_store, encoded):
        with pytest.raises(StoreError) as caught:
            ask(out)
        assert caught.value.what == f"{out / 'manifest.json'} is damaged"
    assert encoded(out, overwrite=True).outcome == "encoded"
    assert_same(out)


# Each file of an encode that is written durably, by a part of its name.
WRITTEN = [
    "plan.json",
    "c/0/0/0",
    "train/hidden_states/c/3/0/0",
    "train-00003.json",
    "validation-00000",
    "manifest.json",
]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is written")
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_that_fails_once_is_one_error_and_the_next_encode_goes_on(
    encoded: Encoding, assert_same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    failed: list[str] = []
    fsync, replace, opened = os.fsync, Path.replace, Path("/proc/self/fd")

    def fails_once(path: str) -> None:
        if name in path.replace("/.", "/") and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def spoilt_fsync(handle: int) -> None:
        fails_once(str((opened / str(handle)).readlink()))
        fsync(handle)

    def spoilt_replace(file: Path, to: Path) -> Path:
        fails_once(str(to))
        return replace(file, to)

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", spoilt_fsync)
    else:
        monkeypatch.setattr(Path, "replace", spoilt_replace)
    out = tmp_path / "s"
    with pytest.raises(FusionkitError, match="cannot write") as caught:
        encoded(out)
    assert caught.value.received == os.strerror(errno.EIO)
    assert len(failed) == 1
    assert not is_complete(out)
    assert list(tmp_path.rglob("*.partial")) == []
    assert encoded(out).outcome == ("encoded" if name == "plan.json" else "resumed")
    assert_same(out)
