"""Stores of int8 and zstd beside the others: the same numbers, the same ways of reading, every damage found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fusionkit.cli.info import info, store_summary
from fusionkit.errors import StoreError
from fusionkit.specs import STATE_DTYPES
from fusionkit.store import open_store, verify_store
from fusionkit.store.chunks import compressed

STATES = "states.zarr/train/hidden_states/c/3/0/0"
SCALES = "states.zarr/train/scales/c/3/0"
MISMATCH = "its bytes do not match its checksum"


def faults(path: Path) -> dict[str, str]:
    return {checked.path: checked.fault for checked in verify_store(path) if checked.fault is not None}


def flipped(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("dtype", STATE_DTYPES)
def test_compressed_states_are_the_same_numbers(laid: Any, dtype: str) -> None:
    stores = [laid(dtype, compression) for compression in ("none", "zstd")]
    raw, squeezed = (open_store(known.path)["train"] for known in stores)
    np.testing.assert_array_equal(squeezed.hidden_states[:], raw.hidden_states[:])
    batches = [split.take([7, 2, 2, 9, 0], layers=[2, 0]) for split in (raw, squeezed)]
    assert torch.equal(batches[0].hidden_states, batches[1].hidden_states)
    assert batches[0].hidden_states.shape == (17 + 9 + 9 + 0 + 3, 2, 5)
    assert [known.states.any() for known in stores] == [True, True]
    files = [[(known.path / STATES).read_bytes()] for known in stores]
    assert files[0] != files[1]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_store_says_which_way_it_is_read(laid: Any, tmp_path: Path, dtype: str) -> None:
    cached = f"whole chunks, kept in a cache of 20 GB in {tmp_path / 'cache' / 'chunks'}"
    for compression, reads in (("none", "memory map"), ("zstd", cached)):
        path = laid(dtype, compression).path
        store = open_store(path)
        assert store.reads == reads
        summary = store_summary(store)
        assert (summary["reads"], summary["compression"], summary["dtype"]) == (reads, compression, dtype)
        shown = CliRunner().invoke(info, [str(path)], env={"COLUMNS": "400"})
        assert shown.exit_code == 0
        lines = {line[:9].strip(): line[10:].strip() for line in shown.output.splitlines()}
        assert lines["read by"] == reads
        assert lines["states"].split(", ")[-1 if compression == "none" else -2 :] == [
            dtype,
            *([] if compression == "none" else ["zstd"]),
        ]


# Of chunk 3 in a store of int8: how each of its files is damaged, and what is then said.
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda file: flipped(file, 7), MISMATCH),
    "a flipped checksum": (lambda file: flipped(file, -1), MISMATCH),
    "deleted": (lambda file: file.unlink(), "missing"),
    "another chunk": (
        lambda file: shutil.copyfile(Path(str(file).replace("/c/3/", "/c/1/")), file),
        "it is not the chunk that was recorded",
    ),
    "nothing but a checksum": (lambda file: file.write_bytes(file.read_bytes()[-4:]), "4 bytes"),
    "cut off": (lambda file: file.write_bytes(file.read_bytes()[:-1]), ""),
    "torn": (lambda file: file.write_bytes(file.read_bytes()[:-9] + bytes(9)), MISMATCH),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"\0"), ""),
}


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("name", [STATES, SCALES])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_chunk_of_int8_is_named_alone(laid: Any, compression: str, name: str, damage: str) -> None:
    path = laid("int8", compression).path
    assert faults(path) == {}
    size = (path / name).stat().st_size
    spoil, fault = DAMAGE[damage]
    spoil(path / name)
    if compression == "none" and damage in ("cut off", "longer", "nothing but a checksum"):
        fault = f"{(path / name).stat().st_size} bytes instead of {size}"
    assert faults(path) == {name: fault or MISMATCH}


@pytest.mark.parametrize("name", [STATES, SCALES])
@pytest.mark.parametrize("damage", ["a flipped bit", "deleted", "cut off", "torn"])
def test_damage_in_a_compressed_chunk_is_one_error_when_it_is_read(laid: Any, name: str, damage: str) -> None:
    known = laid("int8", "zstd")
    DAMAGE[damage][0](known.path / name)
    split = open_store(known.path)["train"]
    np.testing.assert_array_equal(split.hidden_states[:30], known.states[:30])
    for _ in range(2):  # what failed is not kept as if it had been read
        with pytest.raises(StoreError, match="is missing" if damage == "deleted" else "is damaged") as caught:
            split.hidden_states[29:31]
        assert str(known.path / name) in caught.value.what
        assert "fusionkit verify" in str(caught.value.remedy)
    np.testing.assert_array_equal(split.hidden_states[40:], known.states[40:])


@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_frame_of_another_size_than_a_chunk_has_is_refused(laid: Any, factor: float) -> None:
    """With checksums that are right: its size decides how much memory is taken."""
    path = laid("float16", "zstd").path
    frame = bytes(compressed(np.zeros(int(factor * 300), np.uint8)))
    crc32c = google_crc32c.value(frame)
    (path / STATES).write_bytes(frame + crc32c.to_bytes(4, "little"))
    rewrite(path / "manifest.json", lambda it: it["splits"]["train"]["chunks"]["hidden_states"].__setitem__(3, crc32c))
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(path)["train"].hidden_states[29:31]
    assert caught.value.received == "no zstd frame of 300 bytes"


def test_equal_manifests_at_two_addresses_share_no_cached_chunk(laid: Any, tmp_path: Path) -> None:
    """A manifest is copied in no time, so that a chunk of the copy could be read as one of the original."""
    known = laid("float16", "zstd")
    copy = shutil.copytree(known.path, tmp_path / "copy")
    np.testing.assert_array_equal(open_store(copy)["train"].hidden_states[:], known.states)
    (known.path / STATES).unlink()
    with pytest.raises(StoreError, match="is missing"):
        open_store(known.path)["train"].hidden_states[:]


@pytest.mark.parametrize("damage", ["deleted", "cut off"])
def test_missing_or_cut_scales_are_one_error_when_mapped_states_are_read(laid: Any, damage: str) -> None:
    known = laid("int8", "none")
    DAMAGE[damage][0](known.path / SCALES)
    split = open_store(known.path)["train"]
    np.testing.assert_array_equal(split.hidden_states[:30], known.states[:30])
    with pytest.raises(StoreError, match="is missing" if damage == "deleted" else "is damaged") as caught:
        split.take([7])
    assert str(known.path / SCALES) in caught.value.what


def refused(path: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        open_store(path)["train"]
    return caught.value


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


@pytest.mark.parametrize("value", ["lz4", "zstd:3", "", None, True, 3])
def test_a_compression_that_is_none_of_the_formats_is_refused(laid: Any, value: Any) -> None:
    path = laid("float16", "zstd").path
    rewrite(path / "manifest.json", lambda manifest: manifest.update(compression=value))
    error = refused(path)
    assert (error.what, error.expected) == (f"{path / 'manifest.json'} is damaged", "a valid field 'compression'")


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(("compression", "told"), [("none", "zstd"), ("zstd", "none")])
def test_a_manifest_that_tells_another_compression_than_the_arrays_is_refused(
    laid: Any, dtype: str, compression: str, told: str
) -> None:
    path = laid(dtype, compression).path
    rewrite(path / "manifest.json", lambda manifest: manifest.update(compression=told))
    error = refused(path)
    assert error.expected == "a manifest that fits the arrays"
    assert str(error.received).startswith("train: codecs ")
    found = faults(path)
    assert found["manifest.json"] == error.received


def other_codec(file: Path, name: str, change: Callable[[list[dict[str, Any]], int], object]) -> None:
    def edit(metadata: dict[str, Any]) -> None:
        codecs = metadata["codecs"]
        change(codecs, [codec["name"] for codec in codecs].index(name))

    rewrite(file, edit)


CODECS: dict[str, tuple[str, Callable[[list[dict[str, Any]], int], object]]] = {
    "no checksum": ("crc32c", lambda codecs, at: codecs.pop(at)),
    "row-major": ("transpose", lambda codecs, at: codecs.pop(at)),
    "another order": ("transpose", lambda codecs, at: codecs[at]["configuration"].update(order=[0, 1, 2])),
    "another compressor": (
        "crc32c",
        lambda codecs, at: codecs.insert(at, {"name": "gzip", "configuration": {"level": 1}}),
    ),
    "big-endian": ("bytes", lambda codecs, at: codecs[at]["configuration"].update(endian="big")),
    "an unknown compressor": ("crc32c", lambda codecs, at: codecs.insert(at, {"name": "lz9", "configuration": {}})),
}


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("codec", CODECS)
def test_an_array_with_other_codecs_than_the_formats_is_refused(laid: Any, compression: str, codec: str) -> None:
    """A map would take its bytes for numbers."""
    path = laid("float16", compression).path
    other_codec(path / "states.zarr/train/hidden_states/zarr.json", *CODECS[codec])
    error = refused(path)
    assert "is damaged" in error.what
    if codec != "an unknown compressor":
        assert str(error.received).startswith("train: codecs ")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_array_of_another_type_than_the_formats_is_refused(laid: Any, compression: str) -> None:
    """Of the same size: its bytes would be taken for other numbers."""
    path = laid("float16", compression).path
    change = {"data_type": "uint16", "fill_value": 0}
    rewrite(path / "states.zarr/train/hidden_states/zarr.json", lambda metadata: metadata.update(change))
    assert refused(path).received == "train: types ['uint16'] in states.zarr, not ['float16']"


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("gone", ["scales", "scales/zarr.json", "hidden_states/zarr.json"])
def test_an_array_that_is_not_there_is_named(laid: Any, compression: str, gone: str) -> None:
    path = laid("int8", compression).path
    place = path / "states.zarr" / "train" / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    error = refused(path)
    assert "is damaged" in error.what
    assert gone.split("/")[0] in error.what + str(error.received)
    found = faults(path)
    name = f"states.zarr/train/{gone.split('/')[0]}/zarr.json"
    assert found[name] == "missing"
    chunks = {file for file in found if "/scales/c/" in file}
    assert len(chunks) == (5 if gone == "scales" else 0)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        ("int8", lambda chunks: chunks.pop("scales")),
        ("int8", lambda chunks: chunks.pop("hidden_states")),
        ("int8", lambda chunks: chunks.update(scales=["1"])),
        ("float16", lambda chunks: chunks.update(scales=chunks["hidden_states"])),
    ],
)
def test_a_manifest_tells_the_checksums_of_each_array_and_of_no_other(
    laid: Any, dtype: str, change: Callable[[dict[str, Any]], object]
) -> None:
    path = laid(dtype, "none").path
    rewrite(path / "manifest.json", lambda manifest: change(manifest["splits"]["train"]["chunks"]))
    assert str(refused(path).expected).startswith("a valid field 'splits.train.chunks")


@pytest.mark.parametrize(("dtype", "told"), [("int8", "float16"), ("float16", "int8"), ("bfloat16", "float16")])
def test_a_manifest_of_another_precision_is_refused(laid: Any, dtype: str, told: str) -> None:
    """Also where its fields agree with one another."""
    path = laid(dtype, "none").path

    def lie(manifest: dict[str, Any]) -> None:
        manifest["dtype"] = manifest["identity"]["dtype"] = told
        chunks = manifest["splits"]["train"]["chunks"]
        chunks.pop("scales", None)
        if told == "int8":
            chunks["scales"] = chunks["hidden_states"]

    rewrite(path / "manifest.json", lie)
    assert "is damaged" in refused(path).what
