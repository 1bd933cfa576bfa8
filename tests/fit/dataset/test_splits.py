"""Splits that are missing, unlabelled or odd: carved, left out or refused, and always said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.errors import DataError, UsageError
from fusionkit.fit.train.loop import train_run
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

MakeStore = Callable[..., Store]
Rows = list[dict[str, Any]]


def texts(count: int, labels: tuple[Any, ...]) -> Rows:
    return [{"id": f"x{i}", "text": f"text {i}", "label": labels[i % len(labels)]} for i in range(count)]


def run_spec(**fields: Any) -> RunSpec:
    given = {"store": "s", "task": "classification", "label": "label", "fusion": "last", "head": "classifier"}
    return RunSpec(**{**given, "epochs": 1, **fields})


def test_a_missing_validation_split_is_carved_from_train_always_the_same(make_store: MakeStore) -> None:
    store = make_store("mean", train=texts(25, ("a", "b")), test=texts(4, ("a", "b")))
    loads = [load_task(store, *choose_task(store, None, None), None) for _ in range(2)]
    first, again = loads
    assert (len(first.train), len(first.validation)) == (23, 2)  # a tenth of 25
    assert sorted(first.train.ids + first.validation.ids) == sorted(f"x{i}" for i in range(25))
    assert first.validation.ids == again.validation.ids
    assert first.train.ids == again.train.ids
    assert "no validation split: 2 training examples set aside for it, the same in every run" in first.notes
    assert [int(i[1:]) % 2 for i in first.train.ids] == first.train.targets.tolist()


@pytest.mark.parametrize("test", [None, [{"id": "t", "text": "t", "label": None}]])
def test_without_labelled_test_examples_only_validation_is_scored(make_store: MakeStore, test: Rows | None) -> None:
    splits = {"train": texts(6, ("a", "b")), "validation": texts(4, ("a", "b"))} | ({"test": test} if test else {})
    store = make_store("mean", **splits)
    data = load_task(store, *choose_task(store, None, None), None)
    assert data.test is None
    assert "no labelled test split: scores are validation's alone" in data.notes
    assert ("test has no labels: not used" in data.notes) == bool(test)
    outcome = train_run(run_spec(), data, (6,), 384, lambda: None)
    assert outcome.score is None
    assert list(outcome.scores) == ["validation"]


@pytest.mark.parametrize(("label", "shown"), [(-1, "-1"), ("-", "-")])
def test_a_test_split_without_any_label_of_train_counts_as_unlabelled(
    make_store: MakeStore, label: Any, shown: str
) -> None:
    known = (0, 1) if label == -1 else ("a", "b")
    told = texts(6, known), texts(4, known)
    store = make_store("mean", train=told[0], validation=told[1], test=texts(4, (label, None)))
    data = load_task(store, *choose_task(store, None, None), None)
    assert data.test is None
    assert f"test: no label of it occurs in train ({shown}): it is left out" in data.notes
    assert "no labelled test split: scores are validation's alone" in data.notes
    assert not any("counted as errors" in note for note in data.notes)
    control = load_task(store, *choose_task(store, None, None), None, control=True)
    assert control.test is None


def test_one_known_label_makes_a_test_split_and_validation_always_is_one(make_store: MakeStore) -> None:
    told = {"train": texts(6, ("a", "b")), "validation": texts(4, ("-",)), "test": texts(4, ("-", "-", "-", "a"))}
    store = make_store("mean", **told)
    data = load_task(store, *choose_task(store, None, None), None)
    assert data.test is not None
    assert data.test.targets.tolist() == [-1, -1, -1, 0]
    assert data.validation.targets.tolist() == [-1] * 4


def test_an_unlabelled_validation_split_is_replaced_by_a_carved_one(make_store: MakeStore) -> None:
    unlabelled = [{"id": "v", "text": "v", "label": None}]
    store = make_store("mean", train=texts(10, ("a", "b")), validation=unlabelled)
    data = load_task(store, *choose_task(store, None, None), None)
    assert (len(data.train), len(data.validation)) == (9, 1)
    assert "validation has no labels: not used" in data.notes


def test_numbers_are_classes_in_the_order_of_their_values(make_store: MakeStore) -> None:
    store = make_store("mean", train=texts(12, (10, 2, None)), validation=texts(3, (2, 10, 3)))
    data = load_task(store, *choose_task(store, None, None), None)
    assert data.labels == ["2", "10"]
    assert data.train.gold == ["10", "2"] * 4  # and not 10.0, which a missing value makes of 10
    assert data.validation.targets.tolist() == [0, 1, -1]


def test_texts_of_one_value_are_classes_in_one_order(make_store: MakeStore) -> None:
    store = make_store("mean", train=texts(9, ("01", "1", "+1")), validation=texts(3, ("1",)))
    assert load_task(store, *choose_task(store, None, None), None).labels == ["+1", "01", "1"]


def test_other_tags_than_spans_have_the_most_frequent_as_default(make_store: MakeStore) -> None:
    rows = [{"tokens": ["go", "home", "now"], "pos": ["VERB", "NOUN", "NOUN"]}] * 2
    store = make_store("words", train=rows, validation=rows)
    data = load_task(store, *choose_task(store, None, None), None)
    assert (data.default, data.classes, data.labels) == ("NOUN", 2, ["NOUN", "VERB"])


def spans(count: int, last: str) -> Rows:
    return [{"tokens": ["see", "Oslo"], "tags": ["O", last]}] * count


def test_tags_of_another_scheme_are_said_to_be_scored_word_by_word(make_store: MakeStore) -> None:
    strange = [*spans(2, "B-place"), *spans(1, "S-place")]
    for rows, why in ((strange, "they are BIOES (S-place), not BIO"), (spans(3, "B-place"), None)):
        store = make_store("words", train=rows, validation=rows, test=spans(1, "U-place"))
        data = load_task(store, *choose_task(store, None, None), None)
        found = [note for note in data.notes if "word accuracy" in note]
        assert found == ([] if why is None else [f"tags are scored by word accuracy, not F1: {why}"])
        assert data.test is not None  # although train lacks its tags


@pytest.mark.parametrize("empty", ["validation", "test"])
def test_a_split_without_any_span_is_scored_as_the_others_are(make_store: MakeStore, empty: str) -> None:
    """Every split has the same metric, or the best epoch could not be scored on test."""
    splits = {name: spans(3, "O" if name == empty else "B-place") for name in ("train", "validation", "test")}
    store = make_store("words", **splits)
    data = load_task(store, *choose_task(store, None, None), None)
    outcome = train_run(run_spec(task="tagging", label="tags", head="tagger"), data, (6,), 384, lambda: None)
    assert outcome.metric == "f1"
    assert set(outcome.scores["validation"]) == set(outcome.scores["test"])


def test_one_class_is_nothing_to_learn(make_store: MakeStore) -> None:
    store = make_store("mean", train=texts(4, ("same", None)))
    with pytest.raises(UsageError, match="column 'label' of train has fewer than two classes") as caught:
        load_task(store, TASKS["classification"], "label", None)
    assert caught.value.received == "same"


def test_a_store_without_train_cannot_be_fitted(make_store: MakeStore) -> None:
    store = make_store("mean", test=texts(4, ("a", "b")))
    with pytest.raises(UsageError, match="has no train split"):
        load_task(store, *choose_task(store, None, None), None)


def test_one_example_is_too_little_to_set_a_validation_split_aside(make_store: MakeStore) -> None:
    store = make_store("words", train=spans(1, "B-place"), test=spans(1, "B-place"))
    with pytest.raises(DataError, match="has no validation split and too little to set one aside"):
        load_task(store, *choose_task(store, None, None), None)


@pytest.mark.parametrize("rows", ["cls", "mean"])
def test_rows_of_sentences_carry_no_words_to_tag(rows: str, corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store(rows)
    with pytest.raises(UsageError, match=f"rows of {rows} carry no words to tag") as caught:
        load_task(store, *choose_task(store, "tagging", None), None)
    assert "--rows words" in (caught.value.remedy or "")


def test_rows_of_a_text_carry_no_words_to_tag(make_store: MakeStore) -> None:
    rows = [{"text": "two words", "label": "a", "marks": ["x", "y"]}, {"text": "one", "label": "b", "marks": ["x"]}]
    store = make_store("tokens", train=rows)
    with pytest.raises(UsageError, match="rows of tokens carry no words to tag") as caught:
        load_task(store, *choose_task(store, None, "marks"), None)
    assert caught.value.received == "rows of tokens of texts"


def test_a_list_column_of_another_length_is_no_column_of_tags(make_store: MakeStore) -> None:
    rows = [{"tokens": ["go", "home"], "pos": ["VERB", "NOUN"], "topics": ["a", "b", "c"]}] * 3
    store = make_store("words", train=rows)
    with pytest.raises(UsageError, match="train, example 0: 'topics' does not match 'tokens'") as caught:
        load_task(store, *choose_task(store, None, "topics"), None)
    assert (caught.value.expected, caught.value.received) == ("2 tags, one a word", "3")
