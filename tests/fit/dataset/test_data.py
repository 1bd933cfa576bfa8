"""Rows matched with labels: each kind of rows, each task, against row numbers counted here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from fusionkit.bundled import minilm_folder
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.sweep.fusion_choices import choose_pool
from fusionkit.specs import POOLS, ROWS
from fusionkit.store import Split, Store, open_store
from fusionkit.tasks import TASKS

Stored = Callable[[Store, str], NDArray[np.float32]]
Corpus = dict[str, list[dict[str, Any]]]
SPLITS = ("train", "validation", "test")
WORD_KINDS = ("tokens", "words", "words-mean")
SENTENCE_KINDS = [
    ("cls", None), ("last", None), ("mean", None), ("tokens", "cls"), ("tokens", "last"), ("tokens", "mean"),
    ("tokens", "max"), ("words", "mean"), ("words", "max"), ("words-mean", "mean"), ("words-mean", "max"),
]  # fmt: skip
LABELS = ["food", "weather"]
TAGS = ["B-place", "B-who", "I-place", "I-who", "O"]


@pytest.fixture(scope="module")
def word_ids() -> Callable[[list[str]], list[int | None]]:
    """The word of each sub-token of an example, by transformers."""
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder())

    def of(words: list[str]) -> list[int | None]:
        found: list[int | None] = tokenizer(words, is_split_into_words=True, truncation=True, max_length=9).word_ids()
        return found

    return of


def rows_of_words(kind: str, ids: list[list[int | None]], words: list[list[str]]) -> list[list[int]]:
    """For each example the rows of its words that have sub-tokens, in order."""
    start, found = 0, []
    for sub_tokens, texts in zip(ids, words, strict=True):
        present = [w for w in range(len(texts)) if w in sub_tokens]
        found.append([start + (sub_tokens.index(w) if kind == "tokens" else w) for w in present])
        start += len(sub_tokens) if kind == "tokens" else len(texts)
    return found


def rows_of_sentences(kind: str, pool: str | None, ids: list[list[int | None]], words: list[list[str]]) -> Any:
    if kind in ("cls", "last", "mean"):
        return [[i] for i in range(len(ids))]
    if kind != "tokens":
        return rows_of_words(kind, ids, words)
    starts = np.cumsum([0, *map(len, ids)]).tolist()
    one = {"cls": 0, "last": -1}
    return [
        [range(start, stop)[one[pool]]] if pool in one else list(range(start, stop)) for start, stop in pairwise(starts)
    ]


def assert_batch(split: TaskSplit, states: NDArray[np.float32], rows: list[list[int]], order: list[int]) -> None:
    """The batch holds exactly these rows of the store, example after example."""
    batch = split.batch(np.array(order), (0, 4))
    wanted = [rows[i] for i in order]
    flat = [row for example in wanted for row in example]
    assert torch.equal(batch.states, torch.from_numpy(states[np.array(flat, dtype=int)][:, [0, 4]]))
    assert batch.states.dtype == torch.float32
    assert batch.offsets.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()


@pytest.mark.parametrize("kind", WORD_KINDS)
def test_a_tagger_gets_the_row_of_each_word_that_has_one(
    kind: str, corpus_store: Callable[[str], Store], stored: Stored, corpus: Corpus, word_ids: Any
) -> None:
    store = corpus_store(kind)
    task, label = choose_task(store, "tagging", None)
    data = load_task(store, task, label, None)
    assert (data.labels, data.classes, data.default, label) == (TAGS, 2, "O", "tags")
    kept_words = 0
    for name, split in zip(SPLITS, (data.train, data.validation, data.test), strict=True):
        assert split is not None
        words = [row["tokens"] for row in corpus[name]]
        ids = [word_ids(texts) for texts in words]
        rows = rows_of_words(kind, ids, words)
        for order in (list(range(len(words))), list(range(len(words)))[::-1], [1]):
            assert_batch(split, stored(store, name), rows, order)
            tags = [corpus[name][i]["tags"][w] for i in order for w in range(len(words[i])) if w in ids[i]]
            targets = [TAGS.index(tag) if tag in TAGS else -1 for tag in tags]
            assert split.batch(np.array(order), (0,)).targets.tolist() == targets
        assert split.gold == [row["tags"] for row in corpus[name]]
        kept_words += sum(map(len, rows))
    assert kept_words == 41
    assert data.train.gold[5] == []  # an example without words stays


@pytest.mark.parametrize(("kind", "pool"), SENTENCE_KINDS)
def test_a_classifier_gets_the_rows_of_each_labelled_example(
    kind: str, pool: str | None, corpus_store: Callable[[str], Store], stored: Stored, corpus: Corpus, word_ids: Any
) -> None:
    store = corpus_store(kind)
    task, label = choose_task(store, "classification", None)
    data = load_task(store, task, label, choose_pool(store, task, pool))
    assert (data.labels, data.classes, label) == (LABELS, 2, "label")
    for name, split in zip(SPLITS, (data.train, data.validation, data.test), strict=True):
        assert split is not None
        words = [row["tokens"] for row in corpus[name]]
        rows = rows_of_sentences(kind, pool, [word_ids(texts) for texts in words], words)
        labelled = [i for i, row in enumerate(corpus[name]) if row["label"] is not None]
        rows, gold = [rows[i] for i in labelled], [corpus[name][i]["label"] for i in labelled]
        for order in (list(range(len(rows))), [2, 0]):
            assert_batch(split, stored(store, name), rows, order)
            targets = [LABELS.index(gold[i]) if gold[i] in LABELS else -1 for i in order]
            assert split.batch(np.array(order), (0,)).targets.tolist() == targets
        assert split.gold == gold
    assert data.train.ids == [f"train-{i}" for i in (0, 1, 2, 4, 5, 6, 7)]  # 3 has no label
    assert "train: 1 example without label: left out" in data.notes


def test_every_kind_of_rows_and_every_pool_is_among_the_cases() -> None:
    assert {kind for kind, _ in SENTENCE_KINDS} == set(ROWS)
    assert set(WORD_KINDS) == set(ROWS) - {"cls", "last", "mean"}
    assert {pool for _, pool in SENTENCE_KINDS} == {*POOLS, None}
    assert (len(WORD_KINDS), len(SENTENCE_KINDS)) == (3, 11)


@pytest.mark.parametrize("kind", WORD_KINDS)
def test_a_subset_keeps_rows_labels_and_masks_together(kind: str, corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store(kind)
    whole = load_task(store, *choose_task(store, "tagging", None), None).train
    some = np.array([4, 5, 2])
    part = whole.subset(some)
    for order in ([0, 1, 2], [2], [1, 0]):
        ours, theirs = part.batch(np.array(order), (0,)), whole.batch(some[order], (0,))
        assert torch.equal(ours.states, theirs.states)
        assert (ours.offsets.tolist(), ours.targets.tolist()) == (theirs.offsets.tolist(), theirs.targets.tolist())
    assert part.gold == [whole.gold[i] for i in some]
    assert part.ids == ["train-4", "train-5", "train-2"]
    assert part.kept is not None
    assert part.word_offsets is not None
    assert part.word_offsets.tolist() == [0, 10, 10, 15]
    assert part.kept.tolist() == [True] * 7 + [False] * 3 + [True, False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "task", "pool", "read"),
    [
        ("tokens", "tagging", None, {"id", "tags", "tokens"}),
        ("words", "tagging", None, {"id", "tags", "tokens"}),
        ("tokens", "classification", "mean", {"id", "label"}),
    ],
)
def test_only_the_columns_that_a_task_needs_are_read(
    kind: str, task: str, pool: str | None, read: set[str], corpus_store: Callable[[str], Store], corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    store = open_store(corpus_store(kind).path)
    seen, columns = set[str](), Split.columns

    def noted(split: Split, names: Any) -> Any:
        found = columns(split, names)
        seen.update(found.columns)
        return found

    monkeypatch.setattr(Split, "columns", noted)
    monkeypatch.setattr(Split, "examples", property(lambda _: pytest.fail("all columns are read")))
    label = "tags" if task == "tagging" else "label"
    data = load_task(store, TASKS[task], label, pool)
    assert data.train.gold == [row[label] for row in corpus["train"] if row[label] is not None]
    assert data.train.ids == [f"train-{i}" for i, row in enumerate(corpus["train"]) if row[label] is not None]
    assert seen == read


def test_words_without_rows_are_said(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("words")
    notes = load_task(store, *choose_task(store, "tagging", None), None).notes
    left_out = "without a row: left out of training, scored as the default tag"
    assert f"train: 4 words {left_out}" in notes
    assert f"test: 4 words {left_out}" in notes
    assert not any(note.startswith("validation") and "row" in note for note in notes)


def test_labels_that_train_lacks_are_said(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("tokens")
    unseen = "with a label that train lacks"
    notes = load_task(store, *choose_task(store, "tagging", None), None).notes
    assert f"validation: 1 word {unseen} (B-team): counted as errors" in notes
    notes = load_task(store, *choose_task(store, "classification", None), "mean").notes
    assert f"test: 1 example {unseen} (sport): counted as errors" in notes


@pytest.mark.parametrize("kind", ["words", "tokens"])
def test_positions_among_the_layers_select_the_layers(
    kind: str, corpus_store: Callable[[str], Store], stored: Stored
) -> None:
    store = corpus_store(kind)
    split = load_task(store, *choose_task(store, "tagging", None), None).validation
    first = stored(store, "validation")[1 if kind == "tokens" else 0]  # behind [CLS], where that has a row
    for layers in ((6,), (0, 1, 2, 3, 4, 5, 6), (5, 1)):
        assert np.array_equal(split.batch(np.array([0]), layers).states[0].numpy(), first[list(layers)])
