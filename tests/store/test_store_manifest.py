"""A manifest that is cut off, incomplete, of another version or not to be trusted is one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import StoreError
from fusionkit.store import is_complete, is_store, open_store, verify_store

FIELDS = ["identity", "splits", "rows", "layers", "hidden", "dtype", "columns", "encoder", "batch_overhead"]
SPLIT_FIELDS = ["examples", "rows", "tokens", "rows_per_chunk", "masked", "cut"]
WRONG: dict[str, list[Any]] = {
    "identity": ["x", None],
    "splits": [[], None],
    "rows": [3],
    "layers": [[], ["0"], 7, [0.5]],
    "hidden": [0, -1, "384", 1.5],
    "dtype": ["float8", "../float16", 2],
    "columns": [[]],
    "encoder": ["minilm"],
    "files": [[], "x"],
}
WRONG_SPLIT: dict[str, list[Any]] = {
    "rows": [-1, "47", None],
    "examples": [1.5],
    "rows_per_chunk": [0, -10],
    "chunks": ["abc", 7, {}, [1, 2], {"hidden_states": [], "scales": []}, {"hidden_states": [1]}],
}
OUTSIDE = ["../secret", "/etc/hostname", "examples/../../secret", "states.zarr/../..", ".."]
NAMES = ["../x", "/x", "a/b", "", ".", "train.parquet", "a b", "..", "train\n"]


def each(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(field, value) for field, values in table.items() for value in values]


@pytest.fixture
def spoil(fresh: Any) -> Callable[[Callable[[dict[str, Any]], Any]], Path]:
    """Change a store's manifest."""

    def change(how: Callable[[dict[str, Any]], Any]) -> Path:
        file = fresh.path / "manifest.json"
        manifest = json.loads(file.read_text())
        how(manifest)
        file.write_text(json.dumps(manifest))
        return Path(fresh.path)

    return change


Spoil = Callable[[Callable[[dict[str, Any]], Any]], Path]


def refusal(path: Path) -> StoreError:
    """The error that both opening and verifying raise."""
    with pytest.raises(StoreError) as opened:
        open_store(path)
    with pytest.raises(StoreError) as verified:
        list(verify_store(path))
    assert str(opened.value) == str(verified.value)
    assert str(path) in opened.value.what
    return opened.value


@pytest.mark.parametrize("keep", [0, 1, 10, 200, -2])
def test_a_manifest_that_was_cut_off_is_damaged(fresh: Any, keep: int) -> None:
    file = fresh.path / "manifest.json"
    file.write_bytes(file.read_bytes()[:keep])
    assert "is damaged" in refusal(fresh.path).what


@pytest.mark.parametrize("content", [b"[]", b"null", b'"manifest"', b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_object_is_damaged(fresh: Any, content: bytes) -> None:
    (fresh.path / "manifest.json").write_bytes(content)
    assert "is damaged" in refusal(fresh.path).what


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named(spoil: Spoil, field: str) -> None:
    error = refusal(spoil(lambda manifest: manifest.pop(field)))
    assert error.expected == f"a valid field {field!r}"


@pytest.mark.parametrize("field", SPLIT_FIELDS)
def test_a_missing_field_of_a_split_is_named(spoil: Spoil, field: str) -> None:
    error = refusal(spoil(lambda manifest: manifest["splits"]["train"].pop(field)))
    assert error.expected == f"a valid field 'splits.train.{field}'"


def test_an_identity_without_its_maximum_length_is_named(spoil: Spoil) -> None:
    error = refusal(spoil(lambda manifest: manifest["identity"].pop("max_length")))
    assert error.expected == "a valid field 'identity.max_length'"


@pytest.mark.parametrize(("field", "value"), each(WRONG))
def test_a_field_of_a_wrong_kind_is_named(spoil: Spoil, field: str, value: Any) -> None:
    error = refusal(spoil(lambda manifest: manifest.update({field: value})))
    assert error.expected == f"a valid field {field!r}"


@pytest.mark.parametrize(("field", "value"), each(WRONG_SPLIT))
def test_a_field_of_a_wrong_kind_of_a_split_is_named(spoil: Spoil, field: str, value: Any) -> None:
    error = refusal(spoil(lambda manifest: manifest["splits"]["train"].update({field: value})))
    assert error.expected == f"a valid field 'splits.train.{field}'"


# Each is of the right kind, and a lie that the size of a chunk file would not show.
LIES: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "bfloat16", "identity": {"dtype": "bfloat16"}},
    "layers": {"layers": [0, 1, 2], "identity": {"layers": [0, 1, 2]}},
    "shape": {"hidden": 3, "layers": [0, 1, 2, 3, 4], "identity": {"layers": [0, 1, 2, 3, 4]}},
    "chunks": {"splits": {"train": {"rows_per_chunk": 11}}},
    "rows": {"splits": {"train": {"rows": 48}}},
    "examples": {"splits": {"train": {"examples": 11}}},
    "tokens": {"splits": {"train": {"tokens": 46}}},
}


def overlay(below: dict[str, Any], above: dict[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict):
            overlay(below[name], value)
        else:
            below[name] = value


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_does_not_fit_the_arrays_is_refused_and_named(spoil: Spoil, lie: str) -> None:
    path = spoil(lambda manifest: overlay(manifest, LIES[lie]))
    with pytest.raises(StoreError, match="is damaged") as caught:
        open_store(path)["train"]
    assert str(caught.value.received).startswith(f"train: {'shape' if lie == 'rows' else lie} ")
    faults = [checked for checked in verify_store(path) if checked.fault]
    assert [(each.path, each.fault) for each in faults] == [("manifest.json", caught.value.received)]


@pytest.mark.parametrize("field", ["rows", "layers", "dtype"])
def test_a_field_that_differs_from_the_identity_is_named(spoil: Spoil, field: str) -> None:
    others = {"rows": "words", "layers": [0, 2, 5], "dtype": "float32"}
    error = refusal(spoil(lambda manifest: manifest.update({field: others[field]})))
    assert error.expected == f"a valid field {field!r}"


@pytest.mark.parametrize("name", NAMES)
def test_a_split_whose_name_is_a_path_is_refused(spoil: Spoil, name: str) -> None:
    error = refusal(spoil(lambda manifest: manifest["splits"].update({name: manifest["splits"]["train"]})))
    assert error.expected == "a valid field 'splits'"


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_file_outside_the_store_is_refused(spoil: Spoil, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("not the store's")
    error = refusal(spoil(lambda manifest: manifest["files"].update({name: "0" * 64})))
    assert error.expected == "a valid field 'files'"


@pytest.mark.parametrize(("field", "value"), [("version", 2), ("version", "1"), ("version", None), ("format", "other")])
def test_another_format_or_version_says_which(spoil: Spoil, field: str, value: Any) -> None:
    error = refusal(spoil(lambda manifest: manifest.update({field: value})))
    assert "is of another format" in error.what
    assert error.expected == "fusionkit-store version 1"
    assert str(value) in str(error.received)


def test_an_unfinished_store_says_how_to_go_on(fresh: Any) -> None:
    (fresh.path / "manifest.json").rename(fresh.path / "plan.json")
    (fresh.path / "parts").mkdir()
    for part in range(3):
        (fresh.path / "parts" / f"train-0000{part}.json").write_text("{}")
    (fresh.path / "parts" / ".train-00003.json.partial").write_text("{}")
    assert (is_store(fresh.path), is_complete(fresh.path)) == (True, False)
    error = refusal(fresh.path)
    assert "is not finished" in error.what
    assert error.received == "a plan and 3 finished parts"
    assert "run the same `fusionkit encode` again" in str(error.remedy)


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda path: None, "a path that does not exist"),
        (lambda path: path.mkdir(), "something else"),
        (lambda path: path.touch(), "something else"),
    ],
    ids=["nothing", "folder", "file"],
)
def test_what_is_no_store_says_how_to_make_one(tmp_path: Path, make: Callable[[Path], Any], received: str) -> None:
    make(tmp_path / "s")
    error = refusal(tmp_path / "s")
    assert "is no store" in error.what
    assert error.received == received
    assert "fusionkit encode SOURCE --out STORE" in str(error.remedy)
