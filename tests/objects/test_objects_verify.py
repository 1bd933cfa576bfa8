"""verify on S3: what is intact, which object is damaged and how, and only that encoded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.store import verify_store

Command = Callable[..., Any]
CHUNK = "states.zarr/train/{}/c/{}"
# A spec, and an array of its store with what stands behind a chunk's number there.
SPECS = {
    "int8": ({"dtype": "int8"}, "scales", "/0"),
    "zstd": ({"compress": "zstd"}, "hidden_states", "/0/0"),
}


def flip(path: Any, at: int = 20) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 64
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("kind", ["int8", pytest.param("zstd", marks=pytest.mark.soak("products"))])
def test_damaged_chunks_are_named_and_only_they_are_encoded_again(
    bucket: Any, copied: Callable[..., Any], local: Callable[..., Path], fusionkit: Command,
    assert_same: Callable[..., None], kind: str,
) -> None:  # fmt: skip
    spec, array, behind = SPECS[kind]
    out = copied(local(**spec))
    flipped, torn, gone, other, sound = (CHUNK.format(array, f"{chunk}{behind}") for chunk in (1, 2, 3, 4, 5))
    size = len((out / torn).read_bytes())
    flip(out / flipped)
    (out / torn).write_bytes((out / torn).read_bytes()[: size // 2])
    (out / gone).unlink()
    (out / other).write_bytes((out / sound).read_bytes())
    expected = {
        flipped: "its bytes do not match its checksum",
        torn: "its bytes do not match its checksum" if kind == "zstd" else f"{size // 2} bytes instead of {size}",
        gone: "missing",
        other: "it is not the chunk that was recorded",
    }
    found = fusionkit("verify", out, "--json")
    assert (found.code, json.loads(found.out)["faults"]) == (1, expected)
    assert f"fusionkit: {out} is damaged in 4 of " in found.err
    before = {path: path.stat().st_mtime_ns for path in (bucket.folder / "s").rglob("*") if path.is_file()}
    mended = fusionkit("verify", out, "--repair")
    assert mended.code == 0, mended.err
    assert f"4 chunks encoded again: {', '.join(sorted(expected))}" in " ".join(mended.out.split())
    assert "files are intact" in mended.out
    assert_same(bucket.folder / "s", **spec)
    after = {path: path.stat().st_mtime_ns for path in (bucket.folder / "s").rglob("*") if path.is_file()}
    # Of a part all arrays and the record are written again.
    chunks = {part.split("/c/")[1].split("/")[0] for part in expected}
    changed = {
        path.relative_to(bucket.folder / "s").as_posix() for path, when in after.items() if before.get(path) != when
    }
    arrays = [("hidden_states", "/0/0"), ("scales", "/0")][: 2 if kind == "int8" else 1]
    assert changed == {
        *(CHUNK.format(name, f"{chunk}{behind}") for chunk in chunks for name, behind in arrays),
        *(f"parts/train-0000{chunk}.json" for chunk in chunks),
    }  # fmt: skip


def test_a_sound_store_is_intact_and_a_sample_of_it_is_what_the_encoder_gives(
    copied: Callable[..., Any], local: Callable[..., Path], fusionkit: Command
) -> None:
    out = copied(local())
    found = fusionkit("verify", out, "--sample", 10, "--json")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    # All but the manifest, which holds the checksums, and the records of the work.
    assert (
        told["files"]
        == len([path for path in local().rglob("*") if path.is_file() and path.parent.name != "parts"]) - 1
    )
    assert told["faults"] == {}
    assert [row["layer"] for row in told["sample"]] == [0, 1, 2]
    assert all(0 < row["largest"] < 1e-2 and row["cosine"] > 0.9999 for row in told["sample"])  # float16 beside float32


@pytest.mark.parametrize("name", ["examples/train.parquet", "states.zarr/train/row_mask/c/0"])
def test_other_damaged_objects_are_named_and_not_mended(
    copied: Callable[..., Any], local: Callable[..., Path], fusionkit: Command, name: str
) -> None:
    out = copied(local())
    flip(out / name, 7)
    (out / "states.zarr/train/token_ids/c/0").unlink()
    faults = {name: "its bytes do not match its checksum", "states.zarr/train/token_ids/c/0": "missing"}
    assert {checked.path: checked.fault for checked in verify_store(out) if checked.fault} == faults
    ended = fusionkit("verify", out, "--repair")
    assert ended.code == 1
    assert "cannot be repaired from the store alone" in ended.err


def test_a_damaged_array_s_metadata_is_named(copied: Callable[..., Any], local: Callable[..., Path]) -> None:
    out = copied(local())
    name = "states.zarr/train/hidden_states/zarr.json"
    (out / name).write_bytes(b"{}")
    assert [checked.path for checked in verify_store(out) if checked.fault] == [name]
