"""CSV and TSV: what is a field, what is a number, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fusionkit.errors import DataError
from fusionkit.sources import FORMATS, Examples, open_source
from fusionkit.sources.delimited import with_numbers
from fusionkit.sources.spool import spooled

# What the file says → the rows a reader of RFC 4180 expects.
FIELDS = {
    "plain": ("text,label\nabc,x\n", [("abc", "x")]),
    "comma": ('text,label\n"a, b",x\n', [("a, b", "x")]),
    "doubled quote": ('text,label\n"she said ""no""",x\n', [('she said "no"', "x")]),
    "quote inside a bare field": ('text,label\na 5" disk,x\n', [('a 5" disk', "x")]),
    "line end in quotes": ('text,label\n"a\nb",x\nc,y\n', [("a\nb", "x"), ("c", "y")]),
    "line end in the last quotes": ('text,label\nx,"a\nb"\n', [("x", "a\nb")]),
    "empty field": ("text,label\n,x\n", [("", "x")]),
    "words that mean missing elsewhere": ("text,label\nNA,null\nNaN,None\n", [("NA", "null"), ("NaN", "None")]),
    "CRLF": ('text,label\r\nabc,x\r\n"d\r\ne",y\r\n', [("abc", "x"), ("d\r\ne", "y")]),
    "no end of the last line": ("text,label\nabc,x\ndef,y", [("abc", "x"), ("def", "y")]),
    "byte-order mark": ("\ufefftext,label\nabc,x\n", [("abc", "x")]),
    "byte-order mark before a quote": ('\ufeff"text",label\nabc,x\n', [("abc", "x")]),
    "unicode line separators": ("text,label\na\u2028b\u0085c\x0bd\x0ce,x\n", [("a\u2028b\u0085c\x0bd\x0ce", "x")]),
}


def read(path: Path) -> pa.Table:
    """Every column as text."""
    return spooled(FORMATS[path.suffix](path), str(path)).head()


def test_csv_fields_are_read_as_rfc_4180_writes_them(tmp_path: Path) -> None:
    path, seen = tmp_path / "train.csv", 0
    for content, rows in FIELDS.values():
        path.write_text(content, encoding="utf-8", newline="")
        table = read(path)
        assert table.column_names == ["text", "label"]
        assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == rows
        seen += 1
    assert seen == 13


def test_a_lone_quote_in_a_tsv_is_text(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text('text\tlabel\n"hello\t1\nit"s, so\t0\n""\t1\n', encoding="utf-8")
    assert read(path).column("text").to_pylist() == ['"hello', 'it"s, so', '""']


def test_fields_of_a_mebibyte_stay_whole_across_the_reading_blocks(tmp_path: Path) -> None:
    path, long = tmp_path / "train.csv", 'one, ""two""\n' * 80_000  # 66 rows are more than a block of 64 MiB
    path.write_text("text,label\n" + f'"{long}",1\n' * 66, encoding="utf-8")
    assert path.stat().st_size > 64 << 20
    table = read(path)
    assert set(table.column("text").to_pylist()) == {long.replace('""', '"')}
    assert table.column("label").to_pylist() == ["1"] * 66


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("text,label\na,1\nb,2,3\n", "Row #3"),
        ("text,label\na,1\nb\n", "Row #3"),
        ("text,label\n", "a header alone"),
        ("text,label", "a header alone"),
        ("\n", "is empty"),
        ("text,text,label\na,b,1\n", "two columns are called 'text'"),
        ('text,label\nok,1\nfine,"2\nfoo,2\nbar,3\n', "a quote is never closed"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_by_place(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "train.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_ragged_tsv_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\na\t1\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match="Row #3"):
        read(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.touch()
    with pytest.raises(DataError, match="is empty"):
        open_source(str(path))


def test_latin_1_is_refused_with_the_byte_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="0xe9") as caught:
        read(path)
    assert caught.value.remedy is not None
    assert "iconv" in caught.value.remedy


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["0", "1", "-12"], "int64"),
        (["9223372036854775807"], "int64"),
        (["5.0", "3.8", "2"], "double"),
        (["1e-05", "0.25"], "double"),
        (["007", "010"], "string"),
        (["007", "1.5"], "string"),
        (["+5", "6"], "string"),
        (["", "1"], "int64"),
        (["1.5", "", "2"], "double"),
        (["", ""], "string"),
        (["", "one"], "string"),
        (["nan", "1.5", "NaN"], "double"),
        (["1", "nan"], "int64"),
        (["nan", "NaN"], "string"),
        (["nan", "one"], "string"),
        (["NA", "1.5"], "string"),
        (["inf", "1.5"], "string"),
        (["12345678901234567890", "12345678901234567891"], "string"),
        (["1", "one"], "string"),
        ([" 1", "2"], "string"),
    ],
)
def test_a_column_becomes_numeric_only_where_that_loses_nothing(values: list[str], kind: str) -> None:
    examples = Examples.of(pa.table({"value": values}))
    column = with_numbers({"train": examples})["train"].head().column("value")
    assert str(column.type) == kind
    assert [str(v) if kind == "string" else v for v in column.to_pylist()] == (
        values
        if kind == "string"
        else [None if v.lower() in ("", "nan") else int(v) if kind == "int64" else float(v) for v in values]
    )


def test_a_column_has_one_type_in_all_splits(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label,n\na,1,1\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text("text,label,n\nb,x,2\n", encoding="utf-8")
    source = open_source(str(tmp_path))
    assert [str(t.schema.field("label").type) for t in source.splits.values()] == ["string", "string"]
    assert [str(t.schema.field("n").type) for t in source.splits.values()] == ["int64", "int64"]


def test_an_empty_cell_among_numbers_is_a_missing_one_also_where_a_split_has_no_other(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,score\na,0.5\nb,\n", encoding="utf-8")
    (tmp_path / "test.csv").write_text("text,score\nc,\n", encoding="utf-8")
    columns = {name: t.head().column("score") for name, t in open_source(str(tmp_path)).splits.items()}
    assert {str(column.type) for column in columns.values()} == {"double"}
    assert {name: column.to_pylist() for name, column in columns.items()} == {"train": [0.5, None], "test": [None]}


@pytest.mark.parametrize("name", ["train.csv", "TRAIN.CSV"])
def test_numeric_labels_of_a_csv_become_integers_whatever_the_suffix_is_written_like(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("text,label\na,1\nb,0\n", encoding="utf-8")
    assert open_source(str(path)).splits["train"].head().column("label").to_pylist() == [1, 0]


@pytest.mark.parametrize(
    ("late", "kind"),
    [("2", "int64"), ("0.5", "double"), ("two", "string"), ("007", "string"), ("-0", "string")],
)
def test_a_value_far_down_decides_the_type_of_the_whole_column(tmp_path: Path, late: str, kind: str) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,n\n" + "a,1\n" * 2500 + f"b,{late}\n", encoding="utf-8")
    column = open_source(str(path)).splits["train"].head().column("n")
    assert str(column.type) == kind
    same = {"int64": int, "double": float, "string": str}[kind]
    assert column.to_pylist() == [same("1")] * 2500 + [same(late)]


def test_minus_zero_among_fractions_is_a_number_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,n\n" + "a,-0\n" * 2500 + "b,0.5\n", encoding="utf-8")
    assert open_source(str(path)).splits["train"].schema.field("n").type == pa.float64()


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_ragged_row_beyond_the_first_block_is_named_by_its_number(tmp_path: Path, suffix: str) -> None:
    path, line = tmp_path / f"train{suffix}", "some words,1\n" if suffix == ".csv" else "some words\t1\n"
    path.write_text(f"text{line[-3]}label\n" + line * 200_000 + "no label\n", encoding="utf-8")
    assert path.stat().st_size > 2 << 20
    with pytest.raises(DataError, match="Row #200002: Expected 2 columns, got 1"):
        read(path)


def test_a_quote_that_is_never_closed_is_found_beyond_the_first_block(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "some words,1\n" * 150_000 + 'x,"2\n' + "some words,1\n" * 150_000)
    with pytest.raises(DataError, match="a quote is never closed") as caught:
        read(path)
    assert caught.value.received is not None
    assert caught.value.received.startswith("a last field of 150002 lines")
