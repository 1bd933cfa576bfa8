"""Parquet: class names come back, whoever wrote the file."""

from __future__ import annotations

from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusionkit.errors import DataError
from fusionkit.sources.parquet import read_parquet
from fusionkit.sources.spool import spooled


def read(path: Path) -> pa.Table:
    return spooled(read_parquet(path), str(path)).head()


def test_class_labels_kept_in_the_schema_by_datasets_become_their_names(tmp_path: Path) -> None:
    features = {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["neg", "pos"]),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B-x", "I-x"])),
    }
    # The metadata exactly as `datasets` writes it; the stored values are plain numbers.
    schema = datasets.Features(features).arrow_schema
    rows = {"text": ["a b", "c", "d"], "label": [1, 0, -1], "tags": [[1, 2], [0], [-1]]}
    pq.write_table(pa.table(rows, schema=schema), tmp_path / "train.parquet")
    table = read(tmp_path / "train.parquet")
    assert table.column("label").to_pylist() == ["pos", "neg", None]
    assert table.column("tags").to_pylist() == [["B-x", "I-x"], ["O"], [None]]
    assert table.column("text").to_pylist() == ["a b", "c", "d"]


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ("", "the class number 2 has no name"),
        (
            '{"info": {"features": {"label": {"names": ["neg"], "_type": "NoSuchType"}}}}',
            "is not a readable Parquet file",
        ),
        ("{", "is not a readable Parquet file"),
    ],
)
def test_class_numbers_without_names_are_one_error(tmp_path: Path, metadata: str, told: str) -> None:
    schema = datasets.Features({"label": datasets.ClassLabel(names=["neg", "pos"])}).arrow_schema
    schema = schema.with_metadata({"huggingface": metadata}) if metadata else schema
    pq.write_table(pa.table({"label": [0, 2]}, schema=schema), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=told):
        read(tmp_path / "train.parquet")


@pytest.mark.parametrize("by_datasets", [False, True])
def test_string_views_are_read_as_strings(tmp_path: Path, by_datasets: bool) -> None:
    table = pa.table(
        {"text": pa.array(["a b", "c"], pa.string_view()), "tags": pa.array([["O"], None], pa.list_(pa.string_view()))}
    )
    if by_datasets:
        features = datasets.Features(
            {"text": datasets.Value("string_view"), "tags": datasets.List(datasets.Value("string"))}
        )
        table = table.replace_schema_metadata(features.arrow_schema.metadata)
    pq.write_table(table, tmp_path / "train.parquet")
    found = read(tmp_path / "train.parquet")
    assert found.schema.types == [pa.string(), pa.list_(pa.string())]
    assert found.to_pydict() == table.to_pydict()


def test_labels_that_are_all_absent_keep_the_type_of_text(tmp_path: Path) -> None:
    schema = datasets.Features({"label": datasets.ClassLabel(names=["neg", "pos"])}).arrow_schema
    pq.write_table(pa.table({"label": [-1, -1]}, schema=schema), tmp_path / "test.parquet")
    column = read(tmp_path / "test.parquet").column("label")
    assert str(column.type) == "string"
    assert column.to_pylist() == [None, None]


def test_a_plain_table_is_read_as_it_stands(tmp_path: Path) -> None:
    rows = {"text": ["a", "b"], "label": [1, 0], "tokens": [["a"], []]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    assert read(tmp_path / "train.parquet").to_pydict() == rows


def test_a_pandas_categorical_becomes_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "kind": pd.Categorical(["x", "y", "x"])})
    frame.to_parquet(tmp_path / "train.parquet")
    column = read(tmp_path / "train.parquet").column("kind")
    assert pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    assert column.to_pylist() == ["x", "y", "x"]


@pytest.mark.parametrize("content", [b"nope", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.parquet is not a readable Parquet file"):
        read(path)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"text": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read(path)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="holds no rows"):
        read(tmp_path / "train.parquet")


def test_bytes_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    whole = pa.array(["ok", "cafe"])
    spoiled = whole.buffers()[2].to_pybytes().replace(b"cafe", b"caf\xe9")
    text = pa.Array.from_buffers(pa.string(), 2, [None, whole.buffers()[1], pa.py_buffer(spoiled)])
    pq.write_table(pa.table({"text": text}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read(tmp_path / "train.parquet")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="two columns are called 'text'"):
        read(tmp_path / "train.parquet")
