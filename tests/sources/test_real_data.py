"""Public data sets as they are distributed: sizes and entities as published, roles as a reader would say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fusionkit.sources import Columns, Source, guess_columns, open_source, prepared
from fusionkit.tags import to_bio2

DATA = Path(__file__).parents[3] / "shared" / "data"

PUBLISHED = {
    "conll2003": ((14_041, 3_250, 3_453), Columns(tokens="tokens", tags=("tags", "pos", "chunk"))),
    "atis": ((4_478, 500, 893), Columns(tokens="tokens", tags=("slots",), labels=("intent",))),
    "sst2": ((6_920, 872, 1_821), Columns(text="sentence", labels=("label",))),
    "mrpc": ((4_076, 0, 1_725), Columns("sentence1", "sentence2", labels=("label",))),
    "stsb": ((5_749, 1_500, 1_379), Columns("sentence1", "sentence2", labels=("score",))),
    "trec6": ((5_452, 0, 500), Columns(text="text", labels=("label",))),
    "wikiann-de": ((20_000, 10_000, 10_000), Columns(tokens="tokens", tags=("tags",))),
}


def opened(name: str) -> Source:
    if not (DATA / name).is_dir():
        pytest.skip(f"the data set {name} is not in ../shared/data")
    return open_source(str(DATA / name))


def test_the_table_covers_seven_data_sets() -> None:
    assert len(PUBLISHED) == 7


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_roles_are_those_published(name: str) -> None:
    sizes, columns = PUBLISHED[name]
    source = opened(name)
    found = {split: table.num_rows for split, table in source.splits.items()}
    assert found == {k: n for k, n in zip(("train", "validation", "test"), sizes, strict=True) if n}
    assert guess_columns(source) == columns


def test_conll_2003_has_its_published_words_and_entities_after_bio2() -> None:
    source = opened("conll2003")
    mended, notes = prepared(source, guess_columns(source))
    words, entities = [], []
    for examples in mended.splits.values():
        table = examples.head()
        rows = table.column("tags").to_pylist()
        assert all(to_bio2(row) == row for row in rows)
        words.append(sum(map(len, table.column("tokens").to_pylist())))
        entities.append(sum(tag.startswith("B-") for row in rows for tag in row))
    assert words == [203_621, 51_362, 46_435]
    assert entities == [23_499, 5_942, 5_648]
    assert "train: column tags held IOB1 tags, turned into BIO2" in notes


def test_wikiann_is_bio2_already() -> None:
    source = opened("wikiann-de")
    _, notes = prepared(source, guess_columns(source))
    assert notes == []


def test_atis_keeps_its_tags_and_the_intents_unseen_in_train() -> None:
    source = opened("atis")
    train, test = (source.splits[split].head() for split in ("train", "test"))
    intents = set(train.column("intent").to_pylist())
    assert len({tag for row in train.column("slots").to_pylist() for tag in row}) == 120
    assert len(intents) == 21
    assert len(set(test.column("intent").to_pylist()) - intents) == 4


def test_labels_have_the_types_and_counts_published() -> None:
    mrpc = opened("mrpc").splits
    assert [sum(t.head().column("label").to_pylist()) for t in mrpc.values()] == [2_753, 1_147]
    assert set(opened("sst2").splits["train"].head().column("label").to_pylist()) == {"positive", "negative"}
    scores = opened("stsb").splits["train"].head().column("score")
    assert str(scores.type) == "double"
    assert (min(scores.to_pylist()), max(scores.to_pylist())) == (0.0, 5.0)
    trec = Counter(opened("trec6").splits["train"].head().column("label").to_pylist())
    assert sorted(trec) == [0, 1, 2, 3, 4, 5]
