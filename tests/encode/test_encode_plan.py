"""A plan that does not fit what was planned: refused before any work, or before the store is called complete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.encode import EncodeReport
from fusionkit.errors import IdentityError, StoppedError, StoreError
from fusionkit.sources import Source
from fusionkit.store import is_complete

pytestmark = pytest.mark.usefixtures("small_parts")
Encoding = Callable[..., EncodeReport]
Begin = Callable[[str, str], Path]
SMALL = ["row_offsets", "row_mask", "token_offsets", "token_ids", "word_index", "segments", "first_alike"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stores that ``begin`` copies."""
    return tmp_path_factory.mktemp("begun")


@pytest.fixture
def begin(source: Source, encoded: Encoding, begun: Path, tmp_path: Path) -> Begin:
    """A copy of a store of which two parts are done."""

    def run(dtype: str, compress: str) -> Path:
        kept = begun / f"{dtype}-{compress}"
        if not kept.exists():
            answers = iter([False, False, True])
            with pytest.raises(StoppedError):
                encoded(source, kept, dtype=dtype, compress=compress, stop=lambda: next(answers))
        return Path(shutil.copytree(kept, tmp_path / "s"))

    return run


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_a_plan_tells_the_compression_and_a_digest_of_each_file_but_chunks(begin: Begin) -> None:
    out = begin("int8", "zstd")
    plan = json.loads((out / "plan.json").read_text())
    assert plan["compression"] == "zstd"
    files = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    chunks = {name for name in files if "/hidden_states/c/" in name or "/scales/c/" in name}
    assert set(plan["files"]) == files - chunks - {"plan.json"} - {name for name in files if name.startswith("parts/")}
    arrays = {"zarr.json", *(f"{name}/zarr.json" for name in (*SMALL, "hidden_states", "scales"))}
    arrays |= {f"{name}/c/0" for name in SMALL if name != "segments"}  # to Zarr zeros alone need no chunk
    for split in ("train", "validation"):
        inside = f"states.zarr/{split}/"
        assert {name.removeprefix(inside) for name in plan["files"] if name.startswith(inside)} == arrays


@pytest.mark.parametrize("value", ["lz4", "", None, 3, ["zstd"]])
def test_a_plan_of_an_unknown_compression_is_refused(
    source: Source, encoded: Encoding, begin: Begin, value: Any
) -> None:
    out = begin("float16", "none")
    rewrite(out / "plan.json", lambda plan: plan.update(compression=value))
    with pytest.raises(StoreError, match=r"plan\.json is damaged") as caught:
        encoded(source, out)
    assert caught.value.expected == "a valid field 'compression'"


@pytest.mark.parametrize(("compress", "told"), [("none", "zstd"), ("zstd", "none")])
def test_a_plan_of_another_compression_than_its_arrays_is_refused(
    source: Source, encoded: Encoding, begin: Begin, compress: str, told: str
) -> None:
    out = begin("int8", compress)
    rewrite(out / "plan.json", lambda plan: plan.update(compression=told))
    with pytest.raises(StoreError, match="is damaged") as caught:
        encoded(source, out, dtype="int8", compress=told)
    assert str(caught.value.received).startswith("train: codecs ")
    with pytest.raises(IdentityError, match="compression"):
        encoded(source, out, dtype="int8", compress=compress)
    assert encoded(source, out, dtype="int8", compress=compress, overwrite=True).outcome == "encoded"


@pytest.mark.parametrize("gone", ["scales", "scales/zarr.json"])
def test_a_planned_store_without_scales_is_refused(source: Source, encoded: Encoding, begin: Begin, gone: str) -> None:
    out = begin("int8", "none")
    place = out / "states.zarr" / "train" / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    with pytest.raises(StoreError, match="is damaged") as caught:
        encoded(source, out, dtype="int8")
    assert "scales" in caught.value.what + str(caught.value.received)
    assert not is_complete(out)


# A file that came from the source, and what happens to it between two encodes.
CHANGES: dict[str, Callable[[Path], object]] = {
    "train/token_ids/c/0": lambda file: file.write_bytes(b"other"),
    "train/row_mask/c/0": lambda file: file.unlink(),
    "validation/scales/zarr.json": lambda file: file.write_bytes(file.read_bytes() + b" "),
    "train/hidden_states/others": lambda file: file.write_bytes(b"put here by somebody"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_are_no_longer_what_was_planned_never_make_a_complete_store(
    source: Source, encoded: Encoding, begin: Begin, name: str
) -> None:
    out = begin("int8", "none")
    CHANGES[name](out / "states.zarr" / name)
    with pytest.raises(StoreError, match=r"is damaged|holds a file that is not its own") as caught:
        encoded(source, out, dtype="int8")
    assert name.split("/")[1] in f"{caught.value.what} {caught.value.expected} {caught.value.received}"
    assert not is_complete(out)
    if foreign := name.endswith("others"):
        (out / "states.zarr" / name).unlink()
    assert ("move it elsewhere" in str(caught.value.remedy)) == foreign
    again = encoded(source, out, dtype="int8", overwrite=not foreign)  # as the error advises
    assert again.outcome == ("resumed" if foreign else "encoded")
