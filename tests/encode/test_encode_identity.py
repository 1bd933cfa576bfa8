"""A place that is taken: the same work, other work, somebody else's files."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from fusionkit.encode import EncodeReport
from fusionkit.encode.job import fingerprint
from fusionkit.encode.publish import COPYING
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, IdentityError, StoppedError, StoreError, UsageError
from fusionkit.sources import Examples, Source
from fusionkit.store import open_store

Encoding = Callable[..., EncodeReport]
# What is asked for the second time, and the fields that must then be shown: in the store, asked for now.
OTHERS: list[tuple[dict[str, Any], dict[str, tuple[str, str]]]] = [
    ({"rows": "cls"}, {"rows": ("words", "cls")}),
    ({"layers": "-2:"}, {"layers": ("0, 1, 2, 3", "2, 3")}),
    ({"dtype": "bfloat16"}, {"dtype": ("float16", "bfloat16")}),
    ({"max_length": 32}, {"max_length": ("64", "32")}),
    ({"limit": 5}, {"limit": ("–", "5")}),
    ({"compute_dtype": "bfloat16"}, {"compute_dtype": ("float32", "bfloat16")}),
    ({"dtype": "int8"}, {"dtype": ("float16", "int8")}),
    ({"compress": "zstd"}, {"compression": ("none", "zstd")}),
    ({"dtype": "int8", "compress": "zstd"}, {"dtype": ("float16", "int8"), "compression": ("none", "zstd")}),
    ({"rows": "mean", "dtype": "float32"}, {"rows": ("words", "mean"), "dtype": ("float16", "float32")}),
]


@pytest.fixture(scope="module")
def few(source: Source) -> Source:
    return Source("few", {"train": source.splits["train"].head(5)})


@pytest.fixture(scope="module")
def original(few: Source, encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the few; tests must not change it."""
    out = tmp_path_factory.mktemp("stores") / "s"
    encoded(few, out)
    return out


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    """A copy of it, the only thing in the test's folder."""
    return Path(shutil.copytree(original, tmp_path / "s"))


def shown(error: IdentityError) -> dict[str, tuple[str, str]]:
    """The fields of the message's table: name, in the store, asked for now."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in error.what.splitlines()[1:]]
    assert lines[0] == ["in the store", "asked for now"]
    return {name: (found, asked) for name, found, asked in lines[1:]}


@pytest.mark.parametrize(("asked", "fields"), OTHERS)
@pytest.mark.parametrize("finished", [True, False], ids=["finished", "begun"])
def test_other_work_is_refused_with_the_differing_fields_side_by_side(
    few: Source, encoded: Encoding, content: Callable[[Path], dict[str, bytes]], store: Path, asked: dict[str, Any],
    fields: dict[str, tuple[str, str]], finished: bool,
) -> None:  # fmt: skip
    if not finished:
        (store / "manifest.json").rename(store / "plan.json")
    before = content(store)
    with pytest.raises(IdentityError, match="these fields differ") as caught:
        encoded(few, store, **asked)
    assert shown(caught.value) == fields
    assert "--overwrite" in str(caught.value.remedy)
    assert content(store) == before


def test_other_data_and_another_encoder_are_told_by_their_hashes(
    few: Source, encoded: Encoding, encoder: Encoder, store: Path
) -> None:
    table = few.splits["train"].head()
    words = table["tokens"].to_pylist()
    words[3] = [*words[3][:-1], "changed"]
    other = Source("few", {"train": table.set_column(0, "tokens", pa.array(words))})
    with pytest.raises(IdentityError) as caught:
        encoded(other, store)
    assert list(shown(caught.value)) == ["data.train"]
    retrained = dataclasses.replace(encoder, identity={**encoder.identity, "weights": "0123"})
    with pytest.raises(IdentityError) as caught:
        encoded(few, store, model=retrained)
    assert [(name, asked) for name, (_, asked) in shown(caught.value).items()] == [("encoder.weights", "0123")]


def test_what_does_not_change_the_numbers_is_no_other_work(few: Source, encoded: Encoding, store: Path) -> None:
    renamed = Source("another name", dict(few.splits))
    tables = {split: examples.head() for split, examples in few.splits.items()}
    sliced = {split: pa.concat_tables([table.slice(0, 2), table.slice(2)]) for split, table in tables.items()}
    for source in (renamed, Source("few", sliced)):
        assert encoded(source, store, layers="0:4", max_length=64).outcome == "complete"


@pytest.mark.parametrize("name", [b"exp:1", b"caf\xe9"])
def test_a_store_may_lie_where_arrow_takes_no_path(
    few: Source, encoded: Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """Below a folder whose name looks like an address, and below one whose name is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    place = Path(os.fsdecode(name)) / "s"
    assert encoded(few, place).outcome == "encoded"
    train = open_store(place)["train"]
    assert {"tokens", "tags"} <= {*train.column_names}
    assert len(train.columns(["tags"])) == len(train.examples) == 5
    assert encoded(few, place).outcome == "complete"


def test_overwrite_replaces_other_work(few: Source, encoded: Encoding, store: Path) -> None:
    (store / ".DS_Store").touch()
    (store / "parts" / "of-the-old-store").touch()
    assert encoded(few, store, rows="cls", overwrite=True).outcome == "encoded"
    assert open_store(store).rows == "cls"
    assert not list(store.rglob("of-the-old-store"))
    assert [path.name for path in store.parent.iterdir()] == ["s"]


@pytest.mark.parametrize("name", ["runs", "s"])  # also a folder with the store's own name, as a copy makes it
def test_overwrite_removes_no_files_that_are_not_the_stores(
    few: Source, encoded: Encoding, content: Callable[[Path], dict[str, bytes]], store: Path, name: str
) -> None:
    (store / name).mkdir()
    (store / name / "run.json").write_text("{}")
    before = content(store)
    with pytest.raises(UsageError, match="--overwrite would remove them") as caught:
        encoded(few, store, rows="cls", overwrite=True)
    assert caught.value.received == name
    assert content(store) == before
    half = store / name / ".run.json.1.partial"  # of a fit that is running
    half.touch()
    assert encoded(few, store, overwrite=False).outcome == "complete"
    assert half.exists()


def test_a_build_for_another_device_is_no_other_version(
    few: Source, encoded: Encoding, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = version("torch")
    monkeypatch.setattr("fusionkit.encode.job.version", lambda name: f"{here.partition('+')[0]}+cu126")
    with pytest.raises(IdentityError, match=r"versions\.transformers"):
        encoded(few, store)
    monkeypatch.setattr(
        "fusionkit.encode.job.version", lambda name: version(name) + ("" if "+" in version(name) else "+cu126")
    )
    assert encoded(few, store).outcome == "complete"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json", "plan.json"])
def test_a_folder_with_other_files_is_refused_and_untouched(
    few: Source, encoded: Encoding, tmp_path: Path, name: str, overwrite: bool
) -> None:
    out = tmp_path / "folder"
    out.mkdir()
    (out / name).write_text(json.dumps({"name": "somebody else's", "version": 3}))
    with pytest.raises(UsageError, match="exists and is no store"):
        encoded(few, out, overwrite=overwrite)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", name]
    assert "somebody else's" in (out / name).read_text()


def test_a_file_is_refused_and_untouched(few: Source, encoded: Encoding, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file")
    with pytest.raises(UsageError, match="exists and is no store") as caught:
        encoded(few, tmp_path / "s", overwrite=True)
    assert caught.value.received == "a file"
    assert (tmp_path / "s").read_text() == "a file"


def test_an_empty_folder_and_missing_parents_are_fine(few: Source, encoded: Encoding, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "a" / "b" / "s"):
        assert encoded(few, out).outcome == "encoded"
        assert len(open_store(out)["train"]) == 5


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV])
def test_a_folder_that_cannot_be_renamed_gets_the_files(
    few: Source, encoded: Encoding, assert_same: Callable[[Path, Path], None], original: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, number: int,
) -> None:  # fmt: skip
    """A mount point; on an overlay file system, a folder of an image."""
    (out := tmp_path / "s").mkdir()
    rename = Path.replace

    def fails(file: Path, to: Path) -> Path:
        if file == out:
            raise OSError(number, os.strerror(number))
        return rename(file, to)

    monkeypatch.setattr(Path, "replace", fails)
    assert encoded(few, out).outcome == "encoded"
    assert_same(out, original)
    assert encoded(few, out, rows="cls", overwrite=True).outcome == "encoded"
    assert open_store(out).rows == "cls"
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize(
    ("left", "outcome"), [("the old store", "complete"), ("half of a plan", "encoded"), ("a plan", "resumed")]
)
def test_what_a_process_killed_while_it_copied_its_files_leaves_is_no_other_programs(
    few: Source, encoded: Encoding, assert_same: Callable[[Path, Path], None], original: Path, store: Path, left: str,
    outcome: str,
) -> None:  # fmt: skip
    (store / COPYING).mkdir()
    (store / COPYING / "plan.json").write_text("{")
    if left == "half of a plan":
        (store / "manifest.json").unlink()
    elif left == "a plan":
        (store / "manifest.json").rename(store / "plan.json")
    assert encoded(few, store).outcome == outcome
    assert_same(store, original)


def test_a_finished_store_may_lie_where_nothing_can_be_written(
    few: Source, encoded: Encoding, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.encode.lock.try_lock", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    assert encoded(few, store).outcome == "complete"
    with pytest.raises(FusionkitError, match="cannot write"):
        encoded(few, store, overwrite=True)


def test_a_link_to_a_folder_elsewhere_is_followed(few: Source, encoded: Encoding, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk", target_is_directory=True)
    encoded(few, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert len(open_store(tmp_path / "disk")["train"]) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "link"}
    assert encoded(few, tmp_path / "link").outcome == "complete"


def test_the_folder_one_is_in_can_be_the_store(
    few: Source, encoded: Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    encoded(few, Path())
    assert len(open_store(tmp_path / "here")["train"]) == 5


def test_a_damaged_manifest_is_refused_until_overwritten(few: Source, encoded: Encoding, store: Path) -> None:
    (store / "manifest.json").write_text('{"format": "fusionkit-store", "vers')
    with pytest.raises(StoreError, match="is damaged"):
        encoded(few, store)
    assert encoded(few, store, overwrite=True).outcome == "encoded"


def test_an_interrupted_overwrite_goes_on_when_asked_again(
    source: Source, encoded: Encoding, small_parts: None, tmp_path: Path
) -> None:
    encoded(source, tmp_path / "s", layers="-1")
    answers = iter([False, False, True])
    with pytest.raises(StoppedError):
        encoded(source, tmp_path / "s", overwrite=True, stop=lambda: next(answers))
    kept = sorted((tmp_path / "s" / "parts").iterdir())
    before = [part.stat().st_mtime_ns for part in kept]
    assert len(kept) == 2
    assert encoded(source, tmp_path / "s", overwrite=True).outcome == "resumed"
    assert [part.stat().st_mtime_ns for part in kept] == before


def test_the_data_is_known_by_the_hash_of_its_columns_and_values() -> None:
    """The formula written out: a store of an earlier version must still be recognised."""
    rows = [[f"n{i}", i, i / 2, i % 2 == 0, ["a", f"{i}"], None, b"x"] for i in range(2345)]
    names = ["id", "whole", "half", "even", "words", "nothing", "bytes"]
    table = pa.table({name: [row[k] for row in rows] for k, name in enumerate(names)})
    plain = [[*row[:-1], str(row[-1])] for row in rows]  # what JSON does not know is written as Python shows it
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in [names, *plain]]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert fingerprint(Examples.of(table)) == expected
    pieces = [table.slice(start, 7) for start in range(0, 2345, 7)]
    assert fingerprint(Examples.of(pa.concat_tables(pieces))) == expected


def test_a_list_may_hold_what_json_does_not_know() -> None:
    days = [[datetime.date(2024, 2, 29), None], []]
    table = pa.table({"id": [1, 2], "days": days, "bytes": [[b"a"], [b"b", b"c"]]})
    lines = ['["id","days","bytes"]', """[1,["2024-02-29",null],["b'a'"]]""", """[2,[],["b'b'","b'c'"]]"""]
    assert fingerprint(Examples.of(table)) == hashlib.sha256("".join(lines).encode()).hexdigest()
