"""Which task, label and pool a store gets, and what is said where it cannot serve them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusionkit.dataset.infer_task import choose_task
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.fit.sweep.fusion_choices import choose_pool
from fusionkit.store import Store
from fusionkit.tasks import TASKS

MakeStore = Callable[..., Store]


@pytest.fixture(scope="module")
def stores(make_store: MakeStore, corpus_store: Callable[[str], Store]) -> dict[str, Store]:
    """Stores that differ in the columns they have."""
    tagged = [{"tokens": ["go", "on"], "pos": ["VERB", "ADP"]}, {"tokens": ["no"], "pos": ["INTJ"]}]
    texts = [{"text": "good", "label": "up", "size": 1}, {"text": "bad", "label": "down", "size": 2}]
    pairs = [{"sentence1": "a b", "sentence2": "b", "label": 1}, {"sentence1": "a", "sentence2": "c", "label": 0}]
    similar = [{"sentence1": "a", "sentence2": "b", "score": 2.5}, {"sentence1": "c", "sentence2": "d", "score": 5.0}]
    rated = [{"text": "good", "label": "up", "score": 4.0}, {"text": "bad", "label": "down", "score": None}] * 2
    genres = [{"text": f"text {k}", "genre": f"g{k % 2}", "gold": k % 3} for k in range(8)]
    several = [{"tokens": ["go", "on"], "ner": ["O", "B-x"], "pos": ["VERB", "ADP"]}] * 2
    return {
        "tags": make_store("words", train=tagged),
        "labels": make_store("mean", train=texts),
        "pairs": make_store("cls", train=pairs),
        "both": corpus_store("tokens"),
        "similar": make_store("mean", train=similar),
        "rated": make_store("mean", train=rated),
        "genres": make_store("mean", train=genres),
        "several": make_store("words", train=several),
        "nothing": make_store("tokens", train=[{"text": f"an unlabelled text, {i}"} for i in range(9)]),
    }


GUESSED = [
    ("tags", None, None, "tagging", "pos"),
    ("labels", None, None, "classification", "label"),
    ("pairs", None, None, "pair-classification", "label"),
    ("pairs", "classification", None, "classification", "label"),
    ("both", "tagging", None, "tagging", "tags"),
    ("both", "classification", None, "classification", "label"),
    ("both", None, "tags", "tagging", "tags"),
    ("both", None, "label", "classification", "label"),
    ("labels", None, "size", "classification", "size"),
    ("labels", "classification", "size", "classification", "size"),
    ("similar", None, None, "regression", "score"),
    ("similar", "pair-classification", None, "pair-classification", "score"),
    ("similar", None, "score", "regression", "score"),
    ("rated", None, None, "classification", "label"),
    ("rated", None, "score", "classification", "score"),  # a whole number may be a class, also as a float
    ("rated", "regression", None, "regression", "score"),  # the first label that is a number
    ("labels", "regression", "size", "regression", "size"),
]


@pytest.mark.parametrize(("which", "task", "label", "chosen", "column"), GUESSED)
def test_what_is_not_named_follows_from_the_columns(
    which: str, task: str | None, label: str | None, chosen: str, column: str, stores: dict[str, Store]
) -> None:
    found, name = choose_task(stores[which], task, label)
    assert (found.name, name) == (chosen, column)


def test_every_task_is_guessed_in_some_case() -> None:
    # mlm follows from the rows, not from the columns (tests/mlm); lists of labels look like lists of tags.
    assert {case[3] for case in GUESSED if case[1] is None} == set(TASKS) - {"multi-label", "mlm"}
    assert len(GUESSED) == 17


NOTES: list[tuple[str, dict[str, str], list[str]]] = [
    ("genres", {}, ["learns gold; also there: genre (--label chooses)"]),
    ("genres", {"task": "classification"}, ["learns gold; also there: genre (--label chooses)"]),
    ("genres", {"label": "genre"}, []),
    ("genres", {"task": "regression"}, []),  # no other column holds numbers
    ("rated", {}, ["learns label; also there: score (--label chooses)"]),
    ("several", {}, ["learns ner; also there: pos (--label chooses)"]),
    ("several", {"label": "pos"}, []),
    ("labels", {}, []),
    ("both", {"task": "tagging"}, []),
]


@pytest.mark.parametrize(("which", "block", "notes"), NOTES)
def test_a_column_guessed_among_several_is_said_once(
    which: str, block: dict[str, str], notes: list[str], stores: dict[str, Store]
) -> None:
    assert expand_blocks(stores[which], [block, {**block, "fusions": ("last",)}]).notes == notes


REFUSED = [
    ("both", None, None, "has tags and labels: either can be learned", "choose --task from classification"),
    ("nothing", None, None, "has neither tags nor labels", "and --label from the columns"),
    ("both", "taging", None, "unknown task 'taging'", "did you mean 'tagging'?"),
    ("both", None, "lable", "unknown column 'lable'", "did you mean 'label'?"),
    ("both", "tagging", "label", "column 'label' does not suit the task tagging", "choose another --label or --task"),
    ("both", "classification", "tags", "column 'tags' does not suit the task classification", "choose another --label"),
    ("labels", "tagging", None, "has no column for the task tagging", "name it with --label"),
    ("tags", "classification", None, "has no column for the task classification", "name it with --label"),
    (
        "labels",
        "regression",
        None,
        "column 'label' does not suit the task regression",
        "choose another --label or --task",
    ),
    (
        "both",
        "regression",
        "tags",
        "column 'tags' does not suit the task regression",
        "choose another --label or --task",
    ),
    ("labels", "pair-classification", None, "are no pairs", "choose --task classification"),
]


@pytest.mark.parametrize(("which", "task", "label", "what", "remedy"), REFUSED)
def test_a_choice_that_a_store_cannot_serve_is_refused(
    which: str, task: str | None, label: str | None, what: str, remedy: str, stores: dict[str, Store]
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_task(stores[which], task, label)
    assert what in caught.value.what
    assert remedy in (caught.value.remedy or "")
    assert caught.value.expected
    assert caught.value.received


POOLED: list[tuple[str, str, str | None, str | None]] = [
    ("tokens", "classification", None, "mean"),  # what MiniLM was trained with
    ("tokens", "classification", "cls", "cls"),
    ("tokens", "classification", "last", "last"),
    ("tokens", "classification", "max", "max"),
    ("words", "classification", None, "mean"),
    ("words-mean", "classification", "max", "max"),
    ("cls", "classification", None, None),
    ("mean", "classification", None, None),
    ("tokens", "tagging", None, None),
]


@pytest.mark.parametrize(("rows", "task", "asked", "pool"), POOLED)
def test_rows_of_parts_are_pooled_and_others_are_not(
    rows: str, task: str, asked: str | None, pool: str | None, corpus_store: Callable[[str], Store]
) -> None:
    assert choose_pool(corpus_store(rows), TASKS[task], asked) == pool


@pytest.mark.parametrize(
    ("rows", "task", "asked", "what", "remedy"),
    [
        ("tokens", "tagging", "mean", "--pool mean has nothing to pool", "leave --pool out"),
        ("words", "tagging", "cls", "--pool cls has nothing to pool", "leave --pool out"),
        ("cls", "classification", "max", "--pool max has nothing to pool", "encode with --rows tokens to pool at fit"),
        ("mean", "classification", "mean", "--pool mean has nothing to pool", "encode with --rows tokens"),
        ("words", "classification", "cls", "rows of words have no first and no last token", "choose --pool mean or"),
        ("words-mean", "classification", "last", "rows of words have no first and no last", "choose --pool mean or"),
    ],
)
def test_a_pool_without_anything_to_pool_is_refused(
    rows: str, task: str, asked: str, what: str, remedy: str, corpus_store: Callable[[str], Store]
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_pool(corpus_store(rows), TASKS[task], asked)
    error: FusionkitError = caught.value
    assert what in error.what
    assert remedy in (error.remedy or "")
    assert error.expected
    assert error.received
