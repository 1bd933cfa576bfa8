"""Examples in pieces: whatever the pieces are, the same examples in the same order, each time they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fusionkit.sources import Examples

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def counted(*sizes: int, length: int = 1) -> Examples:
    """Numbers from 0 on, with a text each, in batches of these sizes."""

    def read() -> Iterator[pa.RecordBatch]:
        start = 0
        for size in sizes:
            numbers = range(start, start + size)
            yield pa.record_batch([pa.array(numbers), pa.array(["x" * length for _ in numbers], pa.string())], SCHEMA)
            start += size

    return Examples(SCHEMA, sum(sizes), read)


def test_pieces_hold_a_thousand_examples_at_most_and_all_of_them_in_order() -> None:
    examples = counted(5, 2500, 0, 1000)
    for _ in range(2):
        pieces = list(examples.batches())
        assert [piece.num_rows for piece in pieces] == [5, 1000, 1000, 500, 1000]
        assert [n for piece in pieces for n in piece.column("n").to_pylist()] == list(range(3505))


def test_pieces_of_long_texts_hold_fewer_examples() -> None:
    examples = counted(100, 3, length=200_000)
    pieces = list(examples.batches())
    assert sum(piece.num_rows for piece in pieces) == 103
    assert max(piece.nbytes for piece in pieces) < 4.2e6
    assert max(piece.num_rows for piece in pieces) >= 19  # as many as fit in 4 MiB, not one by one
    assert [piece.num_rows for piece in counted(3, length=5_000_000).batches()] == [1, 1, 1]


def test_two_readings_at_once_do_not_disturb_each_other() -> None:
    examples = counted(1500, 1500)
    both = zip(examples.batches(), examples.batches(), strict=True)
    assert all(one.equals(other) for one, other in both)


@pytest.mark.parametrize("count", [0, 1, 5, 7, 12, 20, None])
def test_the_head_is_what_a_list_would_give(count: int | None) -> None:
    table = counted(5, 0, 5, 2).head(count)
    assert table.column("n").to_pylist() == list(range(12))[:count]
    assert table.schema == SCHEMA


@pytest.mark.parametrize("numbers", [[0, 4, 5, 11], [7], [], list(range(12))])
def test_examples_are_taken_by_their_numbers(numbers: list[int]) -> None:
    table = counted(5, 0, 5, 2).take(np.array(numbers, dtype=np.int64))
    assert table.column("n").to_pylist() == numbers
    assert table.schema == SCHEMA


def test_a_change_is_made_at_each_reading_and_knows_which_examples_it_sees() -> None:
    seen = []

    def doubled(batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        seen.append((start, batch.num_rows))
        return batch.set_column(1, "twice", pc.multiply(batch.column("n"), 2))

    examples = counted(5, 1500).changed(doubled)
    assert examples.schema == pa.schema([("n", pa.int64()), ("twice", pa.int64())])
    assert examples.num_rows == 1505
    seen.clear()
    assert examples.head().column("twice").to_pylist() == [2 * n for n in range(1505)]
    assert seen == [(0, 5), (5, 1000), (1005, 500)]


def test_a_table_in_memory_is_examples_too() -> None:
    table = pa.table({"n": pa.chunked_array([[1, 2], [], [3]])})
    assert Examples.of(table).head().equals(table)
    assert Examples.of(table.slice(0, 0)).head().num_rows == 0


def test_a_parquet_file_of_them_has_the_same_bytes_each_time_and_is_cut_into_row_groups(tmp_path: Path) -> None:
    examples = counted(2000, 1, 999, length=9_000)
    for name in ("one", "two"):
        assert [b.num_rows for b in examples.written(tmp_path / name)] == [b.num_rows for b in examples.batches()]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    file = pq.ParquetFile(tmp_path / "one")
    rows = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
    assert sum(rows) == 3000
    assert len(rows) == 3  # 27 MB in groups of about 8 MiB
    assert file.read().equals(examples.head())


def test_pandas_reads_plain_columns_of_examples_that_came_from_pandas(tmp_path: Path) -> None:
    """Its metadata would make `id` the index and a missing label NA."""
    frame = pd.DataFrame({"id": ["a", "b"], "label": ["x", None]}).convert_dtypes().set_index("id")
    deque(Examples.of(pa.Table.from_pandas(frame)).written(tmp_path / "examples"), 0)
    found = pd.read_parquet(tmp_path / "examples")
    assert sorted(found.columns) == ["id", "label"]
    assert found["label"].tolist()[1] is not pd.NA


def test_few_examples_are_one_row_group(tmp_path: Path) -> None:
    deque(counted(5, 5, 1500).written(tmp_path / "few"), 0)
    assert pq.ParquetFile(tmp_path / "few").metadata.num_row_groups == 1
