"""Files and folders as sources: which file is which split, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.sources import FORMATS, open_source

CONTENT = {
    ".csv": "text,label\nhello there,x\n",
    ".tsv": "text\tlabel\nhello there\tx\n",
    ".json": '{"text": "hello there", "label": "x"}\n',
    ".txt": "hello O\nthere B-x\n",
}
CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio")
SAME_AS = {".jsonl": ".json", ".ndjson": ".json"} | dict.fromkeys(CONLL, ".txt")


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": ["hello there"], "label": ["x"]}), path)
    else:
        path.write_text(CONTENT[SAME_AS.get(suffix, suffix)], encoding="utf-8")
    return path


def test_every_format_of_the_table_reads_one_example(tmp_path: Path) -> None:
    seen = 0
    for suffix in FORMATS:
        source = open_source(str(put(tmp_path / f"train{suffix}")))
        (row,) = source.splits["train"].head().to_pylist()
        assert row in (
            {"text": "hello there", "label": "x"},
            {"tokens": ["hello", "there"], "tags": ["O", "B-x"]},
        )
        seen += 1
    assert seen == 12


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.csv", "validation.csv", "test.csv"], ["train", "validation", "test"]),
        (["test.csv", "dev.csv", "train.csv"], ["train", "validation", "test"]),
        (["training.csv", "valid.csv"], ["train", "validation"]),
        (["val.jsonl", "test.tsv"], ["validation", "test"]),
        (["news-train.csv", "news-dev.csv"], ["train", "validation"]),
        (["en_train.txt", "en.test.txt"], ["train", "test"]),
        (["Train.CSV", "Development.CSV"], ["train", "validation"]),
        (["train.parquet", "contest.parquet", "README.md", "latest.csv"], ["train"]),
    ],
)
def test_the_files_of_a_folder_are_taken_by_their_split(tmp_path: Path, names: list[str], splits: list[str]) -> None:
    for name in names:
        if name.endswith(".md"):
            (tmp_path / name).write_text("# About\n")
        else:
            put(tmp_path / name)
    assert list(open_source(str(tmp_path)).splits) == splits


@pytest.mark.parametrize(
    ("name", "split"),
    [("train.csv", "train"), ("dev.csv", "validation"), ("TEST.jsonl", "test"), ("mine.csv", "train")],
)
def test_a_single_file_is_the_split_it_is_named_after_else_train(tmp_path: Path, name: str, split: str) -> None:
    assert list(open_source(str(put(tmp_path / name))).splits) == [split]


def test_a_source_is_called_after_its_file_or_folder(tmp_path: Path) -> None:
    assert open_source(str(put(tmp_path / "news" / "train.csv").parent)).name == "news"
    assert open_source(str(put(tmp_path / "reviews.csv"))).name == "reviews"
    assert open_source(str(put(tmp_path / "news.2024.csv"))).name == "news.2024"
    assert open_source(str(put(tmp_path / "data.v1" / "train.csv").parent)).name == "data.v1"


def test_two_files_for_one_split_are_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "dev.csv")
    put(tmp_path / "validation.jsonl")
    with pytest.raises(UsageError, match="two files for the split validation") as caught:
        open_source(str(tmp_path))
    assert caught.value.received == "dev.csv and validation.jsonl"


@pytest.mark.parametrize("name", [None, "notes.pdf", "deep/weights.bin"])
def test_a_folder_without_data_is_refused(tmp_path: Path, name: str | None) -> None:
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match="holds no data"):
        open_source(str(tmp_path))


def test_a_file_of_no_known_format_is_refused_with_those_known(tmp_path: Path) -> None:
    (tmp_path / "train.xlsx").write_bytes(b"x")
    with pytest.raises(UsageError, match="is of no known format") as caught:
        open_source(str(tmp_path / "train.xlsx"))
    assert caught.value.expected is not None
    assert ".parquet" in caught.value.expected
    assert caught.value.received == ".xlsx"


@pytest.mark.parametrize("source", ["./missing", "missing/train.csv", "/missing/folder", "a b", "a\0b", "x" * 5000])
def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(source: str) -> None:
    with pytest.raises(UsageError, match="no such source") as caught:
        open_source(source)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("source", "scheme"),
    [
        ("s3://bucket/data.jsonl", "s3://"),
        ("gs://bucket/folder", "gs://"),
        ("https://host/train.csv?key=" + "x" * 5000, "https://"),
        ("file:///data/train.csv", "file://"),
    ],
)
def test_an_address_is_refused_as_one_and_not_as_a_misspelt_path(source: str, scheme: str) -> None:
    with pytest.raises(UsageError, match="is an address: sources are read from a local or shared disk") as caught:
        open_source(source, columns=("word", "tag"))
    assert caught.value.received == f"an address of {scheme}"
    assert "copy the data to a disk first" in str(caught.value.remedy)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("source", [r"C:\data\train.csv", "C:/data/train.csv", "C://data/train.csv"])
def test_a_drive_is_no_address(source: str) -> None:
    with pytest.raises(UsageError, match="no such source"):
        open_source(source)


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (["news-dev.csv", "test.tsv"], []),
        (["dev_matched.csv"], ["left out: dev_matched.csv: its name does not end in train, validation or test"]),
        (
            ["dev_matched.csv", "train-2.csv", "dev.csv.gz"],
            [
                "left out: dev_matched.csv, train-2.csv: their names do not end in train, validation or test",
                "left out: dev.csv.gz: compressed files are not read; unpack them",
            ],
        ),
        (
            [f"part{at}.jsonl" for at in range(7)],
            [
                "left out: part0.jsonl, part1.jsonl, part2.jsonl, part3.jsonl, part4.jsonl and 2 more: "
                "their names do not end in train, validation or test"
            ],
        ),
        (["train.csv.gz"], []),  # train.csv is there
        (["README.md", "LICENSE.txt", "third-party-licenses.txt", "readme.txt", ".dev_old.csv", "..gz", "news.py"], []),
        (["dataset_info.json", "dataset_infos.json", "package-lock.json", "notes.pdf", "logs.gz"], []),
        (
            ["more.txt", "more.json"],
            ["left out: more.json, more.txt: their names do not end in train, validation or test"],
        ),
    ],
)
def test_files_of_data_that_no_split_takes_are_named(tmp_path: Path, names: list[str], notes: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("text,label\nhello there,x\n".replace(",", "\t" if name[-3:] == "tsv" else ","))
    source = open_source(str(put(tmp_path / "train.csv").parent))
    assert source.notes == notes


def test_a_column_missing_from_a_later_split_is_noted(tmp_path: Path) -> None:
    put(tmp_path / "train.csv")
    (tmp_path / "test.csv").write_text("text\nunlabelled\n", encoding="utf-8")
    source = open_source(str(tmp_path))
    assert source.notes == ["test lacks column label, which train has"]


@pytest.mark.parametrize("other", ["test.csv", "test.jsonl"])  # each is read before train
def test_numbers_of_a_column_that_another_split_lacks_are_numbers(tmp_path: Path, other: str) -> None:
    (tmp_path / "train.csv").write_text("text,score\na,3.5\nb,1\n")
    (tmp_path / other).write_text("text\nunlabelled\n" if other == "test.csv" else '{"text": "unlabelled"}\n')
    assert open_source(str(tmp_path)).splits["train"].schema.field("score").type == "double"


def test_objects_without_any_key_are_no_usable_split(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    with pytest.raises(FusionkitError, match="no usable split"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("option", ["config", "revision"])
def test_a_hub_option_that_would_be_ignored_is_refused(tmp_path: Path, option: str) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\na,x\nb,y\n")
    given: dict[str, Any] = {option: "en"}
    with pytest.raises(UsageError, match=f"has no {option}s"):
        open_source(str(file), **given)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_files_name_may_be_no_utf8(tmp_path: Path, suffix: str) -> None:
    put(tmp_path / f"a{suffix}").replace(tmp_path / f"caf\udce9{suffix}")
    source = open_source(str(tmp_path / f"caf\udce9{suffix}"))
    assert source.name == r"caf\udce9"  # as JSON can hold it
    assert source.splits["train"].num_rows


FEW = {"train": ["one", "two", "three"], "test": ["four", "five", "six"]}


@pytest.mark.parametrize("limit", [2, 9])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".txt"])
def test_a_limit_takes_the_first_examples_of_each_split_of_any_format(tmp_path: Path, suffix: str, limit: int) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    for split, words in FEW.items():
        path = folder / f"{split}{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.table({"text": words}), path)
            continue
        lines: list[str] = {
            ".csv": ["text,label", *(f"{word},x" for word in words)],
            ".tsv": ["text\tlabel", *(f"{word}\tx" for word in words)],
            ".jsonl": [json.dumps({"text": word}) for word in words],
            ".txt": [f"{word} B-x\n" for word in words],
        }[suffix]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = open_source(str(folder), limit=limit)
    found = {
        split: [row["tokens"][0] if "tokens" in row else row["text"] for row in examples.head().to_pylist()]
        for split, examples in source.splits.items()
    }
    assert found == {split: words[:limit] for split, words in FEW.items()}
    assert source.name == f"few (first {limit})"


def test_a_column_of_objects_without_a_key_is_left_out_and_named(tmp_path: Path) -> None:
    """Parquet, in which a store keeps examples, cannot hold it."""
    lines = ['{"text": "a", "meta": {}, "more": [{"deep": {}}], "some": {}}', '{"text": "b", "some": {"key": 1}}']
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = open_source(str(tmp_path / "train.jsonl"))
    assert source.notes == ["train: column meta, more left out: objects without a key cannot be stored"]
    pieces = list(source.splits["train"].written(tmp_path / "examples.parquet"))
    assert pa.Table.from_batches(pieces).to_pydict() == {"text": ["a", "b"], "some": [{"key": None}, {"key": 1}]}
