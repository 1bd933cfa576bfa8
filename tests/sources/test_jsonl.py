"""JSON lines: a broken line is named, nothing else splits a line, types are one a column."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from fusionkit.errors import DataError
from fusionkit.sources.jsonl import read_jsonl
from fusionkit.sources.spool import spooled


def read(path: Path) -> pa.Table:
    return spooled(read_jsonl(path), str(path)).to_table()


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
