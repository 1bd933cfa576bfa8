"""JSON lines: a broken line is named, nothing else splits a line, types are one a column."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionkit.errors import DataError
from fusionkit.sources import open_source, text
from fusionkit.sources.jsonl import read_jsonl
from fusionkit.sources.spool import spooled


def read(path: Path) -> pa.Table:
    return spooled(read_jsonl(path), str(path)).head()


def put(folder: Path, *lines: str, end: str = "\n") -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")
    return path


def test_objects_become_rows_and_absent_keys_null(tmp_path: Path) -> None:
    table = read(put(tmp_path, '{"text": "a", "label": 1}', '{"label": 2, "extra": [1, 2]}'))
    assert table.to_pydict() == {"text": ["a", None], "label": [1, 2], "extra": [None, [1, 2]]}


def test_blank_lines_are_skipped_and_still_counted(tmp_path: Path) -> None:
    path = put(tmp_path, '{"text": "a"}', "", "  ", '{"text": "b"}')
    assert read(path).column("text").to_pylist() == ["a", "b"]
    with pytest.raises(DataError, match="line 4 is broken JSON"):
        read(put(tmp_path, '{"text": "a"}', "", "  ", '{"text": '))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_unicode_line_separators_inside_a_text_do_not_split_the_line(tmp_path: Path, end: str) -> None:
    text = "a\u2028b\u2029c\u0085d\x1ce"
    raw = json.dumps({"text": text}, ensure_ascii=False)
    assert "\u2028" in raw
    table = read(put(tmp_path, raw, '{"text": "next"}', end=end))
    assert table.column("text").to_pylist() == [text, "next"]


def test_a_byte_order_mark_and_a_missing_last_line_end_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}')
    assert read(path).column("text").to_pylist() == ["a", "b"]


def test_an_array_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mostly one line, which may be larger than memory."""
    monkeypatch.setattr("fusionkit.sources.jsonl.read_lines", None)
    with pytest.raises(DataError, match="line 1 is no JSON object"):
        read(put(tmp_path, "\ufeff", ' [{"text": "a"}, {"text": "b"}]'))


def test_integers_beside_fractions_become_floats(tmp_path: Path) -> None:
    path = put(tmp_path, '{"score": 1}', '{"score": 2.5}')
    assert read(path).column("score").to_pylist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"text": ', "line 2 is broken JSON"),
        ("text", "line 2 is broken JSON"),
        ('{"text":' + "[" * 100_000, "line 2 is broken JSON"),
        ("[1, 2]", "line 2 is no JSON object"),
        ('"text"', "line 2 is no JSON object"),
        ("null", "line 2 is no JSON object"),
        ('{"text": 7}', "column 'text' mixes types"),
        ('{"text": ["a"]}', "column 'text' mixes types"),
        ('{"text": "\\ud800"}', "column 'text' holds a value that cannot be stored"),
        ('{"\\ud800": 1}', r"column '\ud800' holds a value that cannot be stored"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(DataError) as caught:
        read(put(tmp_path, '{"text": "a"}', line))
    assert named in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_number_beyond_64_bits_is_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'n' holds a value that cannot be stored"):
        read(put(tmp_path, '{"n": 123456789012345678901234567890}'))


def test_a_list_that_mixes_words_and_numbers_is_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'tokens' mixes types"):
        read(put(tmp_path, '{"tokens": ["a", 1]}'))


def test_a_file_of_blank_lines_holds_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        read(put(tmp_path, "", "  "))


NUMBERS = st.none() | st.integers(-9, 9) | st.floats(-1, 1)
VALUES = {
    "number": NUMBERS,
    "word": st.none() | st.text("ab", max_size=2),
    "words": st.none() | st.lists(st.none() | st.text("ab", max_size=2), max_size=3),
    "nested": st.none() | st.dictionaries(st.sampled_from("abc"), st.lists(NUMBERS, max_size=2), max_size=3),
    "deep": st.lists(st.fixed_dictionaries({}, optional={"a": st.lists(st.lists(NUMBERS, max_size=2))}), max_size=2),
}
ROWS = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=12)


@given(rows=ROWS, size=st.integers(1, 5))
def test_types_found_piece_by_piece_are_those_found_at_once(rows: list[dict[str, Any]], size: int) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = {name: pa.array([row.get(name) for row in rows]) for name in names}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE_EXAMPLES", size)
        table = read(put(Path(folder), *(json.dumps(row) for row in rows)))
    table.validate(full=True)
    assert table.column_names == names
    for name in names:
        assert table.schema.field(name).type == whole[name].type
        assert table.column(name).to_pylist() == whole[name].to_pylist()


LATE = {
    '{"text": ': "line 2501 is broken JSON",
    "[1]": "line 2501 is no JSON object",
    '{"text": 7}': "column 'text' mixes types",
    '{"n": 0.5}': "column 'n' mixes types",  # a first line's n is no float's neighbour
    '{"text": "\\ud800"}': "column 'text' holds a value that cannot be stored",
}


@pytest.mark.parametrize("line", LATE)
def test_a_bad_line_far_down_is_one_error_and_nothing_is_left(tmp_path: Path, temporary: Path, line: str) -> None:
    path = put(tmp_path, f'{{"text": "a", "n": {2**53 + 1}}}', *['{"text": "a"}'] * 2499, line, '{"text": "b"}')
    with pytest.raises(DataError) as caught:
        open_source(str(path))
    assert str(caught.value).startswith(f"{path}: {LATE[line]}")
    assert list(temporary.iterdir()) == []


def test_lines_beyond_a_piece_widen_the_lines_before(tmp_path: Path) -> None:
    path = put(tmp_path, '{"n": 1, "tags": []}', *["{}"] * 1200, '{"n": 2.5, "tags": ["x"], "late": true}')
    table = read(path)
    assert [str(field.type) for field in table.schema] == ["double", "list<item: string>", "bool"]
    assert table.slice(0, 2).to_pylist() == [
        {"n": 1.0, "tags": [], "late": None},
        {"n": None, "tags": None, "late": None},
    ]
    assert table.slice(1201).to_pylist() == [{"n": 2.5, "tags": ["x"], "late": True}]


def test_objects_without_a_key_before_those_with_one_are_examples_too(tmp_path: Path) -> None:
    path = put(tmp_path, *["{}"] * 1500, '{"text": "a"}')
    assert read(path).column("text").to_pylist() == [None] * 1500 + ["a"]
