"""Hub data sets, hub-format folders and save_to_disk folders, without any network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusionkit.errors import DataError, UsageError
from fusionkit.sources import Columns, guess_columns, open_source, prepared
from fusionkit.sources.hub import examples_of

FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["neg", "pos"]),
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-X", "I-X"])),
    }
)
CONFIGS = """---
configs:
- config_name: english
  data_files:
  - split: train
    path: {english}
- config_name: german
  data_files:
  - split: train
    path: {german}
---
# About
"""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, and a cache that goes with the test."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def examples(*labels: int) -> datasets.Dataset:
    rows: dict[str, list[Any]] = {
        "text": [f"text {i}" for i in range(len(labels))],
        "label": list(labels),
        "tokens": [["a", "b"] for _ in labels],
        "ner_tags": [[1, 2] for _ in labels],
    }
    return datasets.Dataset.from_dict(rows, features=FEATURES)


def hub_folder(folder: Path, english: str, german: str) -> Path:
    """A folder as a hub repository with two configurations, one example each."""
    for language, name in (("english", english), ("german", german)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": [language], "label": [1]}), folder / name)
    (folder / "README.md").write_text(CONFIGS.format(english=english, german=german))
    return folder


def test_a_saved_dataset_dict_gives_class_names_and_known_splits(tmp_path: Path) -> None:
    parts = {"train": examples(1, 0), "dev": examples(0), "test": examples(-1, -1), "extra": examples(1)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))
    assert {split: t.head().column("label").to_pylist() for split, t in source.splits.items()} == {
        "train": ["pos", "neg"],
        "validation": ["neg"],
        "test": [None, None],  # -1, the hub's "no label"
    }
    assert source.splits["train"].head().column("ner_tags").to_pylist() == [["B-X", "I-X"]] * 2
    assert source.notes == ["split 'extra' is left out: only train, validation, test are used"]
    assert guess_columns(source) == Columns(tokens="tokens", tags=("ner_tags",), labels=("label", "text"))


def test_a_saved_dataset_is_the_train_split_with_its_rows_in_the_order_chosen(tmp_path: Path) -> None:
    examples(0, 1, 1).select([2, 0]).save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))
    assert list(source.splits) == ["train"]
    assert source.splits["train"].head().column("text").to_pylist() == ["text 2", "text 0"]
    assert source.splits["train"].head().column("label").to_pylist() == ["pos", "neg"]


def test_a_tag_of_minus_one_is_no_tag_rather_than_the_last_class(tmp_path: Path) -> None:
    rows = {"text": ["x"], "label": [0], "tokens": [["a", "b"]], "ner_tags": [[1, -1]]}
    datasets.Dataset.from_dict(rows, features=FEATURES).save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))
    assert source.splits["train"].head().column("ner_tags").to_pylist() == [["B-X", None]]
    with pytest.raises(DataError, match="train, example 0: 'ner_tags' has an entry without a value"):
        prepared(source, guess_columns(source))


def test_a_damaged_saved_folder_is_refused(tmp_path: Path) -> None:
    examples(0, 1).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "dataset_info.json").unlink()
    with pytest.raises(DataError, match="is a damaged datasets folder"):
        open_source(str(tmp_path / "saved"))


@pytest.mark.parametrize("layout", ["{}/train-00000-of-00001.parquet", "{}-train.parquet"])
@pytest.mark.parametrize("config", ["english", "german"])
def test_a_hub_format_folder_gives_the_configuration_asked_for(tmp_path: Path, layout: str, config: str) -> None:
    folder = hub_folder(tmp_path / "corpus", layout.format("en"), layout.format("de"))
    source = open_source(str(folder), config=config)
    assert {split: t.head().to_pydict() for split, t in source.splits.items()} == {
        "train": {"text": [config], "label": [1]}
    }


@pytest.mark.parametrize("config", [None, "french"])
def test_a_configuration_that_is_missing_or_wrong_gives_the_choices(tmp_path: Path, config: str | None) -> None:
    folder = hub_folder(tmp_path / "corpus", "en/train-0.parquet", "de/train-0.parquet")
    with pytest.raises(UsageError, match="cannot load the data set") as caught:
        open_source(str(folder), config=config)
    assert "'english'" in str(caught.value)
    assert "'german'" in str(caught.value)


@pytest.mark.parametrize("header", ["license: mit", "title: a: b", "configs: [1]"])
def test_a_folder_with_a_card_alone_or_a_broken_one_is_refused(tmp_path: Path, header: str) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "README.md").write_text(f"---\n{header}\n---\n# About\n")
    with pytest.raises(UsageError, match="cannot load the data set"):
        open_source(str(folder))


def test_a_folder_with_a_loading_script_is_refused_and_the_script_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# About\n")
    (folder / "corpus.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UsageError, match="scripts are no longer supported"):
        open_source(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["glue/sst2", "rotten_tomatoes", "someone/no.such-set"])
def test_a_hub_id_without_network_gives_one_usage_error(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(name)
    assert str(caught.value).startswith(f"cannot load the data set '{name}'")
    assert "network" in str(caught.value)
    assert caught.value.exit_code == 2


def many(count: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [f"text {i}" for i in range(count)], "label": [0] * count})


def test_a_saved_data_set_is_read_where_it_lies_and_not_copied(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(2500).save_to_disk(tmp_path / "saved", num_shards=3)
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "absent"))  # a copy would have no place
    source = open_source(str(tmp_path / "saved"))
    expected = {"text": [f"text {i}" for i in range(2500)], "label": [0] * 2500}
    assert source.splits["train"].head().to_pydict() == expected


def test_a_data_set_that_goes_away_while_it_is_needed_is_one_error(tmp_path: Path) -> None:
    many(5).save_to_disk(tmp_path / "saved")
    examples = open_source(str(tmp_path / "saved")).splits["train"]
    (file,) = (tmp_path / "saved").glob("*.arrow")
    file.unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow can no longer be read"):
        examples.head()


REARRANGED: dict[str, Callable[[datasets.Dataset], datasets.Dataset]] = {
    "rows in another order": lambda data: data.select([4, 0, 3, 1, 2]),
    "rows in another order, kept in memory": lambda data: data.shuffle(seed=0, keep_in_memory=True),
    "a part of the rows": lambda data: data.select(range(1, 4)),
    "rows twice": lambda data: datasets.concatenate_datasets([data, data]),
    "half of the rows twice": lambda data: datasets.concatenate_datasets([data.select(range(2))] * 2 + [data]),
    "another type": lambda data: data.cast_column("label", datasets.Value("string")),
    "another name": lambda data: data.rename_column("text", "sentence"),
    "another order of columns": lambda data: data.select_columns(["label", "text"]),
    "fewer columns": lambda data: data.remove_columns("label"),
    "another column": lambda data: data.add_column("more", [7] * 5),
    "no rows": lambda data: data.select([]),
}


@pytest.mark.parametrize("name", REARRANGED)
def test_a_data_set_that_is_not_its_files_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    many(5).save_to_disk(tmp_path / "saved")
    data = REARRANGED[name](datasets.load_from_disk(tmp_path / "saved"))
    examples = examples_of(data, "corpus")
    assert examples.num_rows == len(data)
    assert examples.head().to_pydict() == data.to_dict()
    assert examples.column_names == data.column_names


def test_a_data_set_in_memory_is_read_in_pieces() -> None:
    assert examples_of(many(2500), "corpus").head().to_pydict() == many(2500).to_dict()
