"""Damage to stores of int8 and zstd: either file of a part is named and mended alone; a record tells of both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionkit.encode.repair import damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import StoppedError, StoreError
from fusionkit.store import open_store, verify_store

Encoding = Callable[..., Any]
Same = Callable[..., None]
STATES = "states.zarr/train/hidden_states/c/{}/0/0"
SCALES = "states.zarr/train/scales/c/{}/0"
RECORD = "parts/train-0000{}.json"
MISMATCH = "its bytes do not match its checksum"


def torn(file: Path) -> None:
    """A power cut after the size was known and before the last pages were: zeros to the end."""
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2))


def flipped(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def another(file: Path) -> None:
    shutil.copy(Path(str(file).replace("/c/2/", "/c/1/")), file)


# What happens to one chunk's file, and what verify then says: of a compressed one, and else.
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "flipped": (flipped, MISMATCH, MISMATCH),
    "torn": (torn, MISMATCH, MISMATCH),
    "cut": (cut, MISMATCH, " bytes instead of "),
    "deleted": (Path.unlink, "missing", "missing"),
    "another's": (another, "it is not the chunk that was recorded", "it is not the chunk that was recorded"),
}
PLACES = [("int8", STATES), ("int8", SCALES), ("int8-zstd", STATES), ("int8-zstd", SCALES), ("zstd", STATES)]


def named(store: Path) -> dict[str, str]:
    return {checked.path: checked.fault for checked in verify_store(store) if checked.fault is not None}


def times(store: Path) -> dict[str, int]:
    return {file.relative_to(store).as_posix(): file.stat().st_mtime_ns for file in store.rglob("*") if file.is_file()}


@pytest.mark.product
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(("kind", "file"), PLACES, ids=lambda each: each.split("/")[2] if "/" in each else each)
def test_a_damaged_file_is_named_and_its_part_alone_made_again(
    whole_of: Callable[[str], Path], encoder: Encoder, assert_same: Same, tmp_path: Path,
    kind: str, file: str, damage: str,
) -> None:  # fmt: skip
    out = Path(shutil.copytree(whole_of(kind), tmp_path / "s"))
    assert named(out) == {}
    spoil, squeezed, raw = DAMAGE[damage]
    spoil(out / file.format(2))
    found = named(out)
    assert list(found) == [file.format(2)]
    assert (squeezed if "zstd" in kind else raw) in found[file.format(2)]
    if damage != "another's":  # reading is not verifying: what is sound but in another's place it cannot tell
        height = open_store(out).manifest["splits"]["train"]["rows_per_chunk"]
        states = open_store(out)["train"].hidden_states
        assert states[: 2 * height].shape[0] == 2 * height
        if "zstd" in kind or damage in ("cut", "deleted"):
            with pytest.raises(StoreError, match="is missing" if damage == "deleted" else "is damaged"):
                states[2 * height]
    before = times(out)
    parts = damaged_parts(out, found)
    assert [(part.split, part.chunk) for part in parts] == [("train", 2)]
    assert repair(out, parts, encoder) == []
    after = times(out)
    of_part = {STATES.format(2), RECORD.format(2), *([SCALES.format(2)] if "int8" in kind else [])}
    assert {name for name in after if after[name] != before.get(name)} == of_part
    assert named(out) == {}
    assert_same(out, kind)


def test_both_files_of_a_part_are_one_part_to_mend(
    whole_of: Callable[[str], Path], encoder: Encoder, assert_same: Same, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole_of("int8"), tmp_path / "s"))
    flipped(out / STATES.format(2))
    (out / SCALES.format(2)).unlink()
    torn(out / SCALES.format(0))
    assert named(out) == {STATES.format(2): MISMATCH, SCALES.format(2): "missing", SCALES.format(0): MISMATCH}
    parts = damaged_parts(out, named(out))
    assert sorted((part.split, part.chunk) for part in parts) == [("train", 0), ("train", 2)]
    assert repair(out, parts, encoder) == []
    assert_same(out, "int8")


@pytest.mark.parametrize("kind", ["int8", "int8-zstd"])
def test_scales_metadata_cannot_be_made_again(whole_of: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    out = Path(shutil.copytree(whole_of(kind), tmp_path / "s"))
    flipped(out / "states.zarr/train/scales/zarr.json")
    assert named(out) == {"states.zarr/train/scales/zarr.json": MISMATCH}
    with pytest.raises(StoreError, match="cannot be repaired from the store alone"):
        damaged_parts(out, named(out))


def other_record(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = store / RECORD.format(1)
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def changed(**fields: Any) -> Callable[[Path], None]:
    return lambda store: other_record(store, lambda record: record.update(fields))


def without(*fields: str) -> Callable[[Path], None]:
    return lambda store: other_record(store, lambda record: [record[field].pop("scales") for field in fields])


# Of an unfinished store of int8 whose first four parts are done: each makes the second part be done again.
UNBELIEVED: dict[str, Callable[[Path], object]] = {
    "cut scales": lambda store: cut(store / SCALES.format(1)),
    "torn scales": lambda store: torn(store / SCALES.format(1)),
    "no scales": lambda store: (store / SCALES.format(1)).unlink(),
    "another's scales": lambda store: shutil.copy(store / SCALES.format(0), store / SCALES.format(1)),
    "torn states": lambda store: torn(store / STATES.format(1)),
    "no checksum of scales": without("crc32c"),
    "no size of scales": without("sizes"),
    "neither": without("crc32c", "sizes"),
    "checksums of one more": lambda store: other_record(store, lambda record: record["crc32c"].update(others=1)),
    "sizes of one more": lambda store: other_record(store, lambda record: record["sizes"].update(others=1)),
    "a checksum for all": changed(crc32c=7),
    "names alone": changed(crc32c=["hidden_states", "scales"], sizes=["hidden_states", "scales"]),
    "another size": lambda store: other_record(store, lambda record: record["sizes"].update(scales=1)),
    "another checksum": lambda store: other_record(store, lambda record: record["crc32c"].update(scales=1)),
    "nothing of either": changed(crc32c={}, sizes={}),
}


@pytest.fixture(scope="session")
def begun_of(encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A store of a kind of which four parts are done; not to be changed."""
    folder = tmp_path_factory.mktemp("begun")

    def find(kind: str) -> Path:
        if not (folder / kind).exists():
            asked = iter([False] * 4 + [True])
            with pytest.raises(StoppedError):
                encoded(folder / kind, kind, stop=lambda: next(asked))
        return folder / kind

    return find


@pytest.mark.product
@pytest.mark.parametrize("kind", ["int8", "int8-zstd"])
@pytest.mark.parametrize("what", UNBELIEVED)
def test_a_record_is_believed_only_with_all_files_that_it_must_tell_of(
    begun_of: Callable[[str], Path], encoded: Encoding, assert_same: Same, tmp_path: Path, what: str, kind: str
) -> None:
    out = Path(shutil.copytree(begun_of(kind), tmp_path / "s"))
    before = times(out)
    UNBELIEVED[what](out)
    assert encoded(out, kind).outcome == "resumed"
    after = times(out)
    again = {name for name in before if after.get(name, before[name]) != before[name]}
    assert again == {STATES.format(1), SCALES.format(1), RECORD.format(1)}
    assert_same(out, kind)


def test_records_tell_the_size_and_checksum_of_each_file(
    whole_of: Callable[[str], Path], kinds: dict[str, dict[str, Any]]
) -> None:
    for kind in kinds:
        store, seen = whole_of(kind), 0
        for file in (store / "parts").glob("train-*.json"):
            record = json.loads(file.read_text())
            chunk = record["chunk"]
            files = {"hidden_states": STATES.format(chunk)} | (
                {"scales": SCALES.format(chunk)} if "int8" in kind else {}
            )
            raw = {name: (store / path).read_bytes() for name, path in files.items()}
            assert record["sizes"] == {name: len(content) for name, content in raw.items()}
            assert record["crc32c"] == {name: int.from_bytes(content[-4:], "little") for name, content in raw.items()}
            seen += 1
        assert seen >= 8
    heights = {kind: open_store(whole_of(kind)).manifest["splits"]["train"]["rows_per_chunk"] for kind in kinds}
    assert heights["float16"] == heights["zstd"] < heights["int8"] == heights["int8-zstd"]
    plain, squeezed = (open_store(whole_of(kind))["train"].hidden_states[:] for kind in ("int8", "int8-zstd"))
    np.testing.assert_array_equal(plain, squeezed)
