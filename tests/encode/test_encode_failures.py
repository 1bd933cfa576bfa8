"""Numbers that are not finite, and a disk that is full."""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from fusionkit.encode import EncodeReport
from fusionkit.encode.output_blocks import PartBuffer
from fusionkit.encoder import load_encoder
from fusionkit.errors import EncoderError, FusionkitError, StoreError
from fusionkit.sources import Source
from fusionkit.store import is_store, open_store, verify_store

PAGE = 4096  # what a file takes at least, of memory here
Encoding = Callable[..., EncodeReport]


@pytest.fixture
def spoil(folder: Path, tmp_path: Path) -> Callable[[str, float], str]:
    """A copy of the tiny encoder with one tensor filled with a value."""

    def make(name: str, value: float) -> str:
        place = Path(shutil.copytree(folder, tmp_path / "spoilt"))
        weights = load_file(place / "model.safetensors")
        weights[name] = torch.full_like(weights[name], value)
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        return str(place)

    return make


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_weights_that_are_not_numbers_name_the_layer(
    source: Source, encoded: Encoding, spoil: Callable[[str, float], str], tmp_path: Path, dtype: str
) -> None:
    place = spoil("encoder.layer.1.output.dense.bias", float("nan"))
    with pytest.raises(EncoderError) as caught:
        encoded(source, tmp_path / "s", dtype=dtype, model=load_encoder(place, device="cpu"))
    assert caught.value.what == f"layer 2 of encoder {place!r} is not finite in {dtype}"
    assert caught.value.received == "NaN"
    assert not (tmp_path / "s" / "manifest.json").exists()
    assert list((tmp_path / "s" / "parts").iterdir()) == []
    with pytest.raises(StoreError, match="is not finished"):
        open_store(tmp_path / "s")


def test_states_too_large_for_float16_name_the_layer_and_what_would_do(
    source: Source, encoded: Encoding, spoil: Callable[[str, float], str], tmp_path: Path
) -> None:
    place = spoil("encoder.layer.2.output.LayerNorm.bias", 70_000.0)
    with pytest.raises(EncoderError) as caught:
        encoded(source, tmp_path / "s", model=load_encoder(place, device="cpu"))
    assert caught.value.what == f"layer 3 of encoder {place!r} is not finite in float16"
    assert "65504" in str(caught.value.expected)
    assert 69_000 < float(str(caught.value.received).removeprefix("a largest value of ")) < 71_000
    assert "--dtype bfloat16 or float32" in str(caught.value.remedy)
    assert not (tmp_path / "s" / "manifest.json").exists()
    # Without that layer, or in the precision advised, it is fine.
    for k, how in enumerate([{"layers": "0:3"}, {"dtype": "bfloat16"}, {"dtype": "float32"}, {"dtype": "int8"}]):
        assert encoded(source, tmp_path / str(k), model=load_encoder(place, device="cpu"), **how).outcome == "encoded"
    for k in (1, 2, 3):
        largest = open_store(tmp_path / str(k))["train"].take([0]).hidden_states.float().amax()
        assert 69_000 < float(largest) < 71_000


@pytest.mark.parametrize("step", ["parts.PartReader.read", "parts.forward", "parts.write_chunk"])
@pytest.mark.parametrize(
    "take", [lambda: torch.empty(1 << 50), lambda: mmap.mmap(-1, 1 << 50)], ids=["tensor", "pages"]
)
def test_memory_that_does_not_suffice_is_one_error_and_the_work_goes_on(
    step: str,
    take: Callable[[], object],
    source: Source,
    encoded: Encoding,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real allocation that nobody can make, while a part is read, computed or written."""
    with monkeypatch.context() as patch:
        patch.setattr(f"fusionkit.encode.{step}", lambda *_: take())
        with pytest.raises(EncoderError, match="part 0 of train cannot be encoded on cpu") as caught:
            encoded(source, tmp_path / "s")
    assert str(caught.value.received).startswith("out of memory: ")
    assert "--max-length" in str(caught.value.remedy)
    assert encoded(source, tmp_path / "s").outcome == "resumed"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root alone")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all space but this much."""
    filler = disk / "filler"
    filler.write_bytes(b"\0" * (shutil.disk_usage(disk).free - leave))
    return filler


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("room", ["for nothing", "for half a plan", "for some parts"])
def test_a_full_disk_is_one_error_and_with_space_again_the_work_goes_on(
    source: Source, encoded: Encoding, whole: Path, assert_same: Callable[[Path, Path], None], small_disk: Path,
    room: str,
) -> None:  # fmt: skip
    out = small_disk / "s"
    pages = {file: -(-file.stat().st_size // PAGE) for file in whole.rglob("*") if file.is_file()}
    planned = sum(count for file, count in pages.items() if not {"c", "parts"} & set(file.parts))
    leave = {"for nothing": 0, "for half a plan": planned // 2, "for some parts": sum(pages.values()) - 12}[room]
    filler = fill(small_disk, leave * PAGE)
    with pytest.raises(FusionkitError, match="the disk is full: cannot write") as caught:
        encoded(source, out)
    assert type(caught.value) is FusionkitError
    assert "finished work is kept" in str(caught.value.remedy)
    kept = sorted((out / "parts").iterdir()) if is_store(out) else []
    assert bool(kept) == (room == "for some parts")
    assert {path.name for path in small_disk.iterdir()} == ({"filler", "s"} if kept else {"filler"})
    assert not is_store(out) or not (out / "manifest.json").exists()
    records = [json.loads(file.read_text()) for file in kept]
    filler.unlink()
    report = encoded(source, out)
    assert report.outcome == ("resumed" if kept else "encoded")
    after = [json.loads(file.read_text()) for file in sorted((out / "parts").iterdir())]
    assert records == after[: len(records)]
    assert report.tokens == sum(record["tokens"] for record in after[len(records) :])
    assert_same(out, whole)
    assert [path.name for path in small_disk.iterdir()] == ["s"]
    assert all(checked.fault is None for checked in verify_store(out))


def test_a_mount_point_can_be_the_store(source: Source, encoded: Encoding, small_disk: Path) -> None:
    for overwrite in (False, True):
        assert encoded(source, small_disk, rows="mean", overwrite=overwrite).outcome == "encoded"
        assert all(checked.fault is None for checked in verify_store(small_disk))
        assert [path.name for path in small_disk.parent.iterdir()] == [small_disk.name]


def test_a_full_mount_point_is_one_error(source: Source, encoded: Encoding, small_disk: Path) -> None:
    """A plan is copied there, because a mount point cannot be renamed; what was there stays until it is whole."""
    encoded(source, small_disk, rows="mean")
    filler = fill(small_disk, 2 * PAGE).rename(small_disk / ".hidden")
    with pytest.raises(FusionkitError, match="the disk is full"):
        encoded(source, small_disk, rows="mean", overwrite=True)
    assert all(checked.fault is None for checked in verify_store(small_disk))
    filler.unlink()
    assert encoded(source, small_disk, rows="mean", overwrite=True).outcome == "encoded"


def test_a_place_that_may_not_be_written_is_one_error(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FusionkitError, match="cannot write"):
        encoded(source, tmp_path / "file" / "s")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.soak("products")), "int8"])
def test_a_write_that_fails_midway_ends_the_encode_and_leaves_nothing_running(
    source: Source, encoded: Encoding, assert_same: Callable[[Path, Path], None], tmp_path: Path, dtype: str
) -> None:
    """The kernel refuses files as large as a chunk from the fifth of many parts on: the writer fails, others wait."""
    tables = [source.splits["train"].head().slice(k) for k in range(6)]
    many = Source("many", {"train": pa.concat_tables(tables).combine_chunks()})  # one block: only parts are counted
    computed, caught = 0, list[Exception]()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full_from_the_fifth() -> bool:
        nonlocal computed
        computed += 1
        if computed == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
        return False

    def run() -> None:
        try:
            encoded(many, tmp_path / "s", dtype=dtype, stop=full_from_the_fifth)
        except FusionkitError as error:
            caught.append(error)

    try:
        work = threading.Thread(target=run, daemon=True)
        work.start()
        work.join(timeout=120)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not work.is_alive()
    assert len(caught) == 1
    assert "the disk is full: cannot write" in str(caught[0])
    # The encoder has two buffers, and one part may be asked for meanwhile: three parts ahead of the one that failed.
    assert 5 <= computed <= 5 + 3
    assert [thread for thread in threading.enumerate() if thread.name.startswith(("writer", "reader"))] == []
    del caught[:]
    gc.collect()
    assert [each for each in gc.get_objects() if type(each) is PartBuffer] == []
    parts = len(list((tmp_path / "s" / "parts").iterdir()))
    assert 1 <= parts <= 5
    assert list((tmp_path / "s").rglob("*.partial")) == []
    assert encoded(many, tmp_path / "s", dtype=dtype).outcome == "resumed"
    assert len(list((tmp_path / "s" / "parts").iterdir())) > 20
    encoded(many, tmp_path / "undisturbed", dtype=dtype)
    assert_same(tmp_path / "s", tmp_path / "undisturbed")
