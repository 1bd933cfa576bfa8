"""What a joint run learns from: its two columns, the examples that have both labels, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fusionkit.dataset.infer_task import choose_tasks
from fusionkit.dataset.labels import load_joint, load_task
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store
from fusionkit.tasks import TASKS

CorpusStore = Callable[[str], Store]


def joint(pool: str) -> RunSpec:
    return RunSpec(store="s", task="joint", label="label,tags", fusion="last", head="classifier+tagger", pool=pool)


def columns_of(store: Store, label: str | None) -> str:
    chosen = choose_tasks(store, "joint", label)
    assert {name: task.name for name, (task, _) in chosen.items()} == {"intent": "classification", "slots": "tagging"}
    return ",".join(column for _, column in chosen.values())


@pytest.mark.parametrize("label", [None, "label,tags", "tags,label"])
def test_the_two_columns_are_guessed_or_named_in_either_order(label: str | None, corpus_store: CorpusStore) -> None:
    assert columns_of(corpus_store("tokens"), label) == "label,tags"


WRONG = [
    ("label", "a joint run learns two columns", "name both with --label;"),
    ("label,tags,label", "a joint run learns two columns", "name both with --label;"),
    ("lable,tags", "unknown column 'lable'", "did you mean 'label'?"),
    ("label,", "unknown column ''", ""),
    ("label,label", "column 'label' does not suit the task tagging", "choose another --label"),
    ("tags,tags", "column 'tags' does not suit the task classification", "choose another --label"),
]


@pytest.mark.parametrize(("label", "what", "remedy"), WRONG)
def test_columns_that_do_not_suit_are_refused(label: str, what: str, remedy: str, corpus_store: CorpusStore) -> None:
    with pytest.raises(UsageError) as caught:
        choose_tasks(corpus_store("tokens"), "joint", label)
    assert what in caught.value.what
    assert remedy in (caught.value.remedy or "")


def test_a_store_without_one_of_the_columns_or_with_several_is_refused(make_store: Callable[..., Store]) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-x"], "label": f"l{i % 2}", "topic": f"t{i % 2}"} for i in range(8)]
    several = make_store("tokens", train=rows)
    bare = make_store("tokens", train=[{name: row[name] for name in ("tokens", "tags")} for row in rows])
    for store, received in ((several, "labels label, topic; tags tags"), (bare, "labels none; tags tags")):
        with pytest.raises(UsageError, match="a joint run learns two columns") as caught:
            choose_tasks(store, "joint", None)
        assert caught.value.received == received
    assert columns_of(several, "topic,tags") == "topic,tags"


@pytest.mark.parametrize(("rows", "pool"), [("tokens", "cls"), ("tokens", "mean"), ("words", "max")])
def test_intents_and_slots_are_the_same_examples_over_the_same_rows(
    rows: str, pool: str, corpus_store: CorpusStore, corpus: dict[str, Any]
) -> None:
    data = load_joint(corpus_store(rows), joint(pool))
    slots = data.others["slots"]
    assert data.notes[0] == "train: 1 example without label: left out"
    for name in ("train", "validation", "test"):
        split = getattr(data, name)
        with_label = [row for row in corpus[name] if row["label"]]
        assert split.gold == [row["label"] for row in with_label]
        assert split.others["slots"].gold == [row["tags"] for row in with_label]
        tagged = split.others["slots"]
        assert split.ids == tagged.ids
        np.testing.assert_array_equal(split.rows, tagged.rows)
        np.testing.assert_array_equal(split.offsets, tagged.offsets)
        assert tagged is getattr(slots, name)
    some = data.train.subset(np.array([4, 1]))
    tagged = some.others["slots"]
    assert tagged.gold == [data.train.parts["slots"].gold[k] for k in (4, 1)]
    batch = some.batch(np.array([1, 0]), (2, 4))
    assert batch.others["slots"].states is batch.states
    assert batch.targets.tolist() == [data.labels.index(some.gold[k]) for k in (1, 0)]
    tags = [tag for k in (1, 0) for tag in tagged.gold[k]]
    has_row = np.concatenate([_kept(tagged, k) for k in (1, 0)])
    wanted = [slots.labels.index(tag) for tag, kept in zip(tags, has_row, strict=True) if kept]
    assert batch.others["slots"].targets.tolist() == wanted


def _kept(split: Any, example: int) -> Any:
    return split.kept[split.word_offsets[example] : split.word_offsets[example + 1]]


@pytest.fixture
def with_gaps(corpus_store: CorpusStore, tmp_path: Path) -> Store:
    """The corpus's store, but two training examples lose their tags (one of them has no label either), test all."""
    return without_tags(corpus_store("tokens"), tmp_path / "gaps.store", train=[3, 7], test=[0, 1, 2])


def without_tags(store: Store, place: Path, **splits: list[int]) -> Store:
    """A copy of a store, whose examples with these numbers have no tags."""
    shutil.copytree(Path(str(store.path)), place)
    for split, lost in splits.items():
        path = place / "examples" / f"{split}.parquet"
        frame = pd.read_parquet(path)
        frame["tags"] = [None if k in lost else tags for k, tags in enumerate(frame["tags"])]
        frame.to_parquet(path)
    return open_store(place)


@pytest.mark.parametrize("label", [None, "tags,label"])
def test_the_first_example_may_lack_its_tags(label: str | None, corpus_store: CorpusStore, tmp_path: Path) -> None:
    store = without_tags(corpus_store("tokens"), tmp_path / "first.store", train=[0])
    assert columns_of(store, label) == "label,tags"
    assert "train-0" not in load_joint(store, joint("mean")).train.ids


def test_examples_that_lack_either_label_are_left_out_aloud(with_gaps: Store, corpus: dict[str, Any]) -> None:
    data = load_joint(with_gaps, joint("mean"))
    assert data.train.gold == [row["label"] for k, row in enumerate(corpus["train"]) if k not in (3, 7)]
    assert data.test is None
    assert data.notes[:2] == [
        "train: 2 examples without tags: left out",
        "train: 1 example without label: left out",
    ]
    assert "test has no example with all labels: not used" in data.notes


def test_labels_that_train_lacks_are_counted_for_both(corpus_store: CorpusStore) -> None:
    notes = load_joint(corpus_store("words"), joint("mean")).notes
    assert "test: 1 example with a label that train lacks (sport): counted as errors" in notes
    assert "validation: 1 word with a label that train lacks (B-team): counted as errors" in notes


@pytest.mark.parametrize("rows", ["mean", "cls"])
def test_rows_that_are_one_an_example_are_refused(rows: str, corpus_store: CorpusStore, watch: Any) -> None:
    store = corpus_store(rows)
    with pytest.raises(UsageError, match="carry no words to tag"):
        fit(store, expand(store, task="joint", fusions=["last"]), RunsFolder(Path("nowhere")), watch)
    assert not Path("nowhere").exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"head": "crf"}, "unknown head for joint 'crf'"),
    ({"head": "tagger+classifier"}, "unknown head for intent 'tagger'"),
    ({"head": "classifier+crff"}, "unknown head for slots 'crff'"),
    ({"head": "classifier+crf", "label_smoothing": 0.1}, "head 'classifier+crf' cannot use --label-smoothing"),
    ({"pool": "cls"}, "rows of words have no first and no last token"),
    ({"joint_fusion": "both"}, "unknown joint-fusion 'both'"),
    ({"task": "tagging", "joint_fusion": "each"}, "the task tagging has one head"),
]


@pytest.mark.parametrize(("choices", "what"), REFUSED)
def test_choices_that_a_joint_run_cannot_serve_are_refused(
    choices: dict[str, Any], what: str, corpus_store: CorpusStore
) -> None:
    with pytest.raises(UsageError) as caught:
        expand(corpus_store("words"), fusions=["last"], **{"task": "joint", **choices})
    assert what in caught.value.what


def test_a_text_without_a_state_keeps_its_row_of_zeros_where_a_text_has_one_row(
    make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(
        "mean", train=[{"text": f"a b {i}", "label": f"l{i % 2}", "topic": f"t{i % 2}"} for i in range(8)]
    )
    monkeypatch.setattr(type(store["train"]), "row_mask", np.arange(8) != 3)
    data = load_task(store, TASKS["classification"], "label", None, whole=True)
    assert len(data.train.rows) == len(data.train)
