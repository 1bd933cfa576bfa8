"""What was parsed lies on the disk: with the types that all pieces agree on, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fusionkit.errors import DataError, FusionkitError
from fusionkit.sources.spool import spooled


def pieces(*columns: dict[str, list[Any]]) -> Iterator[pa.RecordBatch]:
    return (pa.record_batch({name: pa.array(values) for name, values in piece.items()}) for piece in columns)


def disk_use() -> int:
    """Bytes of the files without a name that this process holds."""
    handles = Path("/proc/self/fd")
    if not handles.exists():
        pytest.skip("needs /proc to see which files are held")
    found = 0
    for handle in handles.iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile by a thread of an earlier test
            if str(handle.readlink()).endswith("(deleted)"):
                found += handle.stat().st_size
    return found


WIDER: list[tuple[list[list[Any]], str]] = [
    ([[1, 2], [3]], "int64"),
    ([[1], [2.5]], "double"),
    ([[2.5], [1]], "double"),
    ([[None], [1]], "int64"),
    ([[1], [None], [None, 2]], "int64"),
    ([[None], [None, "a"]], "string"),
    ([[None], [True]], "bool"),
    ([[None], [["a"]]], "list<item: string>"),
    ([[[]], [["a"], None]], "list<item: string>"),
    ([[[None, None], None]], "list<item: null>"),
    ([[[1], None], [[2.5, None]], [[]]], "list<item: double>"),
    ([[{"b": 1}], [{"a": [None, None]}], [{"a": [None, None]}, None]], "struct<b: int64, a: list<item: null>>"),
    ([[{"b": 1}], [{"a": "x", "b": 0.5}]], "struct<b: double, a: string>"),
    ([[[{"b": 1}] * 3], [[{"a": [[None]]}]], [[{"a": [["x"]]}]]], "list<item: struct<b: int64, a: list<item: list<"),
]


def test_pieces_are_read_back_in_the_type_of_all_of_them() -> None:
    seen = 0
    for given, kind in WIDER:
        examples = spooled(pieces(*({"x": values} for values in given)), "corpus")
        assert str(examples.schema.field("x").type).startswith(kind)
        whole = pa.array([value for values in given for value in values])  # Arrow's own answer, given all at once
        assert examples.schema.field("x").type == whole.type
        table = examples.head()
        table.validate(full=True)
        assert table.column("x").to_pylist() == whole.to_pylist()
        seen += 1
    assert seen == 14


def test_columns_that_come_later_are_null_before_and_keep_the_order_they_came_in() -> None:
    examples = spooled(pieces({"b": [1]}, {"a": ["x"], "b": [2]}, {"c": [[0.5]]}), "corpus")
    assert examples.column_names == ["b", "a", "c"]
    expected = {"b": [1, 2, None], "a": [None, "x", None], "c": [None, None, [0.5]]}
    assert examples.head().to_pydict() == expected
    assert examples.num_rows == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", 1), (1, "a"), (True, 1), (1, ["a"]), (["a"], [1]), ({"a": 1}, {"a": "x"}), ({"a": 1}, [1])],
)
def test_pieces_that_no_type_holds_are_refused_by_column(first: Any, second: Any) -> None:
    with pytest.raises(DataError, match="corpus: column 'x' mixes types"):
        spooled(pieces({"x": [first]}, {"y": [0]}, {"x": [second]}), "corpus")


@pytest.mark.parametrize("given", [[[2**53 + 1], [0.5]], [[0.5], [2**53 + 1]], [[[2**53 + 1]], [[0.5]]]])
def test_a_number_that_the_wider_type_cannot_hold_is_refused_at_once(given: list[list[Any]]) -> None:
    with pytest.raises(DataError, match="corpus: column 'x' mixes types"):
        spooled(pieces(*({"x": values} for values in given)), "corpus")


def test_the_space_is_free_again_when_the_examples_are_not_needed_any_more(temporary: Path) -> None:
    before = disk_use()
    examples = spooled(pieces({"x": ["a" * 100_000]}, {"x": ["b"]}), "corpus")
    changed = examples.changed(lambda batch, start: batch)
    del examples
    assert 100_000 < disk_use() - before < 110_000
    assert list(temporary.iterdir()) == []  # and it never has a name
    assert changed.head().column("x").to_pylist() == ["a" * 100_000, "b"]
    del changed
    assert disk_use() == before


def test_a_reading_that_goes_on_keeps_what_it_reads(temporary: Path) -> None:
    examples = spooled(pieces({"x": [1]}, {"x": [2.5]}, {"x": [3]}), "corpus")
    reading = examples.batches()
    next(reading)
    del examples
    assert [batch.column("x").to_pylist() for batch in reading] == [[2.5], [3.0]]


def test_an_error_on_the_way_leaves_nothing(temporary: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from pieces({"x": ["a" * 100_000]})
        raise ZeroDivisionError

    before = disk_use()
    with pytest.raises(ZeroDivisionError):
        spooled(broken(), "corpus")
    assert disk_use() == before
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("room", [0, 100, 150_000])
def test_a_full_disk_is_one_error_with_the_folder_and_what_to_do(
    temporary: Path, cramped: Callable[[int], AbstractContextManager[None]], room: int
) -> None:
    before = disk_use()
    with cramped(room), pytest.raises(FusionkitError, match="the disk is full: cannot write") as caught:
        spooled(pieces(*({"x": ["a" * 100_000]} for _ in range(3))), "corpus")
    assert caught.value.what == f"the disk is full: cannot write {temporary}"
    assert "TMPDIR" in str(caught.value.remedy)
    del caught
    assert disk_use() == before


def test_no_place_for_temporary_files_at_all_is_one_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(temporary / "absent")])
    with pytest.raises(FusionkitError, match="no folder for temporary files") as caught:
        spooled(pieces({"x": [1]}), "corpus")
    assert "TMPDIR" in str(caught.value.remedy)


KILLED = """
import os, signal, sys
from fusionkit.sources import open_source

source = open_source(sys.argv[1])
assert source.splits["train"].num_rows == 3
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing(temporary: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", KILLED, path], env=env, check=False)
    assert done.returncode == -9
    assert list(temporary.iterdir()) == []
