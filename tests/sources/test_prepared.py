"""What is checked and mended before encoding: texts present, tags a word each, BIO2, an id."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fusionkit.errors import DataError, UsageError
from fusionkit.sources import Columns, Source, prepared

TAGGED = Columns(tokens="tokens", tags=("tags",))


def source_of(**splits: dict[str, Any]) -> Source:
    return Source("corpus", {name: pa.table(columns) for name, columns in splits.items()})


def test_iob1_becomes_bio2_split_by_split_and_is_reported() -> None:
    source = source_of(
        train={"tokens": [["a", "b", "c"], ["d"]], "tags": [["I-X", "I-X", "B-X"], ["I-Y"]]},
        test={"tokens": [["e", "f"]], "tags": [["B-X", "I-X"]]},
    )
    mended, notes = prepared(source, TAGGED)
    assert mended.splits["train"].head().column("tags").to_pylist() == [["B-X", "I-X", "B-X"], ["B-Y"]]
    assert mended.splits["test"].head().column("tags").to_pylist() == [["B-X", "I-X"]]
    assert notes == ["train: column tags held IOB1 tags, turned into BIO2"]


def test_parts_of_speech_are_left_as_they_are() -> None:
    source = source_of(train={"tokens": [["a", "b"]], "tags": [["I-NP", "NN"]]})
    mended, notes = prepared(source, TAGGED)
    assert mended.splits["train"].head().column("tags").to_pylist() == [["I-NP", "NN"]]
    assert notes == []


def test_numeric_tags_become_text() -> None:
    mended, _ = prepared(source_of(train={"tokens": [["a", "b"]], "tags": [[3, 0]]}), TAGGED)
    assert mended.splits["train"].head().column("tags").to_pylist() == [["3", "0"]]


def test_examples_without_words_stay_in_place() -> None:
    source = source_of(train={"tokens": [["a"], [], ["b"]], "tags": [["O"], [], ["O"]]})
    mended, _ = prepared(source, TAGGED)
    assert mended.splits["train"].head().column("tokens").to_pylist() == [["a"], [], ["b"]]


def test_an_id_is_added_only_where_none_is() -> None:
    source = source_of(train={"text": ["a", "b"]}, test={"text": ["c"]})
    mended, _ = prepared(source, Columns(text="text"))
    assert mended.splits["train"].head().column("id").to_pylist() == ["train-0", "train-1"]
    assert mended.splits["test"].head().column("id").to_pylist() == ["test-0"]
    kept, _ = prepared(source_of(train={"text": ["a"], "idx": [7]}), Columns(text="text"))
    assert kept.splits["train"].column_names == ["text", "idx"]


def test_the_source_given_is_not_changed() -> None:
    source = source_of(train={"tokens": [["a"]], "tags": [["I-X"]]})
    prepared(source, TAGGED)
    assert source.splits["train"].head().to_pydict() == {"tokens": [["a"]], "tags": [["I-X"]]}


def test_a_tag_column_may_be_absent_from_a_split() -> None:
    source = source_of(train={"tokens": [["a"]], "tags": [["O"]]}, test={"tokens": [["b"]]})
    mended, _ = prepared(source, TAGGED)
    assert mended.splits["test"].column_names == ["id", "tokens"]


def test_a_tag_column_may_be_empty_in_a_split() -> None:
    source = source_of(train={"tokens": [["a"]], "tags": [["O"]]}, test={"tokens": [["b"]], "tags": [None]})
    mended, _ = prepared(source, TAGGED)
    assert mended.splits["test"].head().column("tags").to_pylist() == [None]


@pytest.mark.parametrize(
    ("columns", "roles", "named"),
    [
        ({"text": ["a", None, None]}, Columns(text="text"), "test, example 1: column 'text' has no value"),
        ({"text": ["a"], "b": [None]}, Columns("text", "b"), "test, example 0: column 'b' has no value"),
        ({"tokens": [["a"], None]}, Columns(tokens="tokens"), "test, example 1: column 'tokens' has no value"),
        ({"tokens": [["a"], ["b", None]]}, Columns(tokens="tokens"), "test, example 1: 'tokens' has an entry"),
        ({"tokens": [["a", "b"]], "tags": [["O", None]]}, TAGGED, "test, example 0: 'tags' has an entry"),
        ({"tokens": [["a"], ["b", "c"]], "tags": [["O"], ["O"]]}, TAGGED, "test, example 1: 'tags' does not match"),
        ({"tokens": [["a"], ["b", "c"]], "tags": [["O"], None]}, TAGGED, "test, example 1: 'tags' does not match"),
    ],
)
def test_an_example_that_cannot_be_encoded_is_named(columns: dict[str, Any], roles: Columns, named: str) -> None:
    with pytest.raises(DataError) as caught:
        prepared(source_of(test=columns), roles)
    assert str(caught.value).startswith(named)


def test_ragged_tags_say_how_many_came_and_how_many_were_due() -> None:
    source = source_of(train={"tokens": [["a", "b", "c"]], "tags": [["O"]]})
    with pytest.raises(DataError) as caught:
        prepared(source, TAGGED)
    assert caught.value.expected == "3 tags, one a word"
    assert caught.value.received == "1"


@pytest.mark.parametrize(
    ("columns", "roles", "named"),
    [
        ({"text": [1, 2]}, Columns(text="text"), "column 'text' of train holds no text"),
        ({"text": [["a"]]}, Columns(text="text"), "column 'text' of train holds no text"),
        ({"tokens": ["a b"]}, Columns(tokens="tokens"), "column 'tokens' of train holds no words"),
        ({"tokens": [[1, 2]]}, Columns(tokens="tokens"), "column 'tokens' of train holds no words"),
        ({"tokens": [[["a"]]]}, Columns(tokens="tokens"), "column 'tokens' of train holds no words"),
        ({"other": ["a"]}, Columns(text="text"), "train has no column 'text'"),
        ({"tokens": [["a"]], "tags": ["O"]}, TAGGED, "column 'tags' of train holds no tags"),
        ({"tokens": [["a"]], "tags": [[["O"]]]}, TAGGED, "column 'tags' of train holds no tags"),
    ],
)
def test_a_column_that_does_not_suit_its_role_is_refused(columns: dict[str, Any], roles: Columns, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(source_of(train=columns), roles)
    assert str(caught.value).startswith(named)


LATE: list[tuple[Any, Any, str]] = [
    (None, ["O"], "train, example 2500: column 'tokens' has no value"),
    (["a", None], ["O", "O"], "train, example 2500: 'tokens' has an entry"),
    (["a"], ["O", "O"], "train, example 2500: 'tags' does not match"),
    (["a"], None, "train, example 2500: 'tags' does not match"),
    (["a"], [None], "train, example 2500: 'tags' has an entry"),
]


@pytest.mark.parametrize(("words", "tags", "named"), LATE)
def test_an_example_far_down_is_named_by_its_number_in_the_split(words: Any, tags: Any, named: str) -> None:
    tokens = [["a"]] * 2500 + [words] + [["a"]] * 10
    source = source_of(train={"tokens": tokens, "tags": [["O"]] * 2500 + [tags] + [["O"]] * 10})
    with pytest.raises(DataError) as caught:
        prepared(source, TAGGED)
    assert str(caught.value).startswith(named)


def test_all_missing_texts_of_a_split_are_counted() -> None:
    source = source_of(train={"text": ["a", None, *["b"] * 2500, None, None]})
    with pytest.raises(DataError) as caught:
        prepared(source, Columns(text="text"))
    assert caught.value.received == "3 missing"


@pytest.mark.parametrize("at", [0, 2500])
def test_one_iob1_row_anywhere_mends_the_whole_split(at: int) -> None:
    tags = [["B-X", "I-X"]] * 3000
    tags[at] = ["I-X", "I-X"]
    mended, notes = prepared(source_of(train={"tokens": [["a", "b"]] * 3000, "tags": tags}), TAGGED)
    assert mended.splits["train"].head().column("tags").to_pylist() == [["B-X", "I-X"]] * 3000
    assert notes == ["train: column tags held IOB1 tags, turned into BIO2"]


def test_one_tag_of_another_kind_anywhere_leaves_all_as_they_are() -> None:
    tags = [["I-NP"]] * 2500 + [["NN"]]
    mended, notes = prepared(source_of(train={"tokens": [["a"]] * 2501, "tags": tags}), TAGGED)
    assert mended.splits["train"].head().column("tags").to_pylist() == tags
    assert notes == []


def test_ids_count_on_from_piece_to_piece() -> None:
    mended, _ = prepared(source_of(train={"text": ["a"] * 2300}), Columns(text="text"))
    assert mended.splits["train"].head().column("id").to_pylist() == [f"train-{i}" for i in range(2300)]
