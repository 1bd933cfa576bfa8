"""``fusionkit verify``: what is intact, what is damaged, what can be mended."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
CHUNK = "states.zarr/test/hidden_states/c/0/0/0"


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """A store to damage."""
    return shutil.copytree(small, tmp_path / "copied.store")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 64
    path.write_bytes(content)


def test_every_file_is_read(fusionkit: Command, store: Path) -> None:
    done = fusionkit("verify", store, "--json")
    assert done.code == 0
    # All but the manifest, which holds the checksums, and the records of the work.
    files = [path for path in store.rglob("*") if path.is_file() and path.parent.name != "parts"]
    assert (done.json["store"], done.json["files"], done.json["faults"]) == (str(store), len(files) - 1, {})
    assert fusionkit("verify", store).out == f"{store}: all {len(files) - 1} files are intact\n"
    assert f"verifying: {len(files) - 1} files" in done.err


def test_damage_is_named_file_by_file(copied: Path, fusionkit: Command) -> None:
    flip(copied / CHUNK)
    (copied / "examples" / "train.parquet").unlink()
    done = fusionkit("verify", copied)
    assert done.code == 1
    assert "copied.store is damaged in 2 of" in done.err
    assert f"{CHUNK}: its bytes do not match its checksum" in done.err
    assert "examples/train.parquet: missing" in done.err
    assert "  remedy:   " in done.err
    assert done.out == ""
    found = fusionkit("verify", copied, "--json")
    assert found.code == 1
    assert sorted(found.json["faults"]) == ["examples/train.parquet", CHUNK]


def test_a_damaged_chunk_is_mended_to_the_same_bytes(copied: Path, small: Path, fusionkit: Command) -> None:
    flip(copied / CHUNK)
    others = {path: path.stat().st_mtime_ns for path in copied.rglob("c/0/0/0") if path != copied / CHUNK}
    done = fusionkit("verify", copied, "--repair")
    assert done.code == 0, done.err
    assert f"1 chunk encoded again: {CHUNK}" in done.out
    assert (copied / CHUNK).read_bytes() == (small / CHUNK).read_bytes()
    assert {path: path.stat().st_mtime_ns for path in others} == others
    assert fusionkit("verify", copied).code == 0


def test_damage_that_came_from_the_source_cannot_be_mended(copied: Path, fusionkit: Command) -> None:
    flip(copied / "examples" / "test.parquet")
    done = fusionkit("verify", copied, "--repair")
    assert done.code == 1
    assert "cannot be repaired from the store alone" in done.err
    assert "encode the source again with --overwrite" in done.err


def test_a_sample_is_encoded_live_and_compared(small: Path, fusionkit: Command) -> None:
    done = fusionkit("verify", small, "--sample", 5, "--json")
    assert done.code == 0
    (row,) = done.json["sample"]
    assert row["layer"] == 6
    assert 0 < row["largest"] < 1e-2  # float16 beside float32
    assert 0.9999 < row["cosine"] <= 1.0001
    for asked, told in ((5, 5), (999, 20)):
        assert f"{told} examples, stored beside live" in fusionkit("verify", small, "--sample", asked).out


def test_a_sample_is_not_compared_with_another_encoder(small: Path, fusionkit: Command) -> None:
    """One of another shape would end in a traceback, one of the same shape in large differences."""
    done = fusionkit("verify", small, "--sample", 1, "--encoder", "minilm (untrained 0)")
    assert (done.code, done.out) == (1, "")
    assert f"encoder 'minilm (untrained 0)' is not the one that made {small}: its weights differ" in done.err
