"""Control labels (Hewitt and Liang 2019): one a word type or text, in every split and for every seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusionkit.dataset.control import control_label, label_pool
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.dataset.split import TaskSplit
from fusionkit.errors import UsageError
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.sweep.grid import expand
from fusionkit.store import Store
from fusionkit.tasks import TASKS


def by_type(store: Store, splits: dict[str, TaskSplit]) -> dict[str, set[str]]:
    """The labels of each word type over all splits."""
    found = defaultdict[str, set[str]](set)
    for name, split in splits.items():
        frame = store[name].examples
        for number, tags in zip(split.ids, split.gold, strict=True):
            [at] = np.flatnonzero(frame["id"].astype(str) == number)
            for word, tag in zip(frame["tokens"].iloc[at], tags, strict=True):
                found[word].add(tag)
    return found


def test_a_word_type_has_one_control_tag_in_all_splits_for_all_seeds_and_in_a_mix(
    corpus_store: Callable[[str], Store],
) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=["last"], seeds=2, control=True)
    assert [(spec.control, spec.data_seed) for spec in specs] == [(False, 0), (False, 1), (True, 0), (True, 1)]
    context, seen = SweepContext(store), []
    for spec in specs:
        data = context.load(spec)
        assert data.test is not None
        splits = {"train": data.train, "validation": data.validation, "test": data.test}
        seen.append(by_type(store, splits))
        assert data.labels == ["B-place", "B-who", "I-place", "I-who", "O"]  # heads have one shape
        assert [len(split) for split in splits.values()] == [8, 3, 3]
    real, _, control, other_seed = seen
    assert control == other_seed
    assert all(len(tags) == 1 for tags in control.values())
    assert any(control[word] != real[word] for word in control)
    told = [tag for tags in context.load(specs[0]).train.gold for tag in tags]
    assert all(tags == {control_label("tags", word, sorted(told))} for word, tags in control.items())
    # A mix has train's labels of all its stores: of one store they are the same.
    mix = Mix([Share(store, "6")])
    mixed = SweepContext(mix).load(expand(mix, task="tagging", fusions=["last"], control=True)[-1])
    assert mixed.test is not None
    assert by_type(store, {"test": mixed.test}).items() <= control.items()


def test_control_labels_have_the_distribution_of_trains() -> None:
    pool = label_pool(TASKS["tagging"], [[["O"] * 60 + ["B-x"] * 30, ["I-x"] * 10, None]])
    assert Counter(pool) == {"O": 60, "B-x": 30, "I-x": 10}
    drawn = Counter(control_label("tags", f"word {number}", pool) for number in range(5000))
    shares = {name: count / 5000 for name, count in drawn.items()}
    assert shares == pytest.approx({"O": 0.6, "B-x": 0.3, "I-x": 0.1}, abs=0.025)  # 3.5 standard errors


def test_a_text_has_one_control_label_and_another_column_another(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("words")
    [_, spec] = expand(store, task="classification", fusions=["last"], control=True)
    train = SweepContext(store).load(spec).train
    assert len(train) == 7  # the example without a label stays without one
    assert set(train.gold) <= {"food", "weather"}
    pool = list("ab") * 50
    told = {column: [control_label(column, f"text {at}", pool) for at in range(50)] for column in ("one", "two")}
    assert told["one"] != told["two"]


@pytest.mark.parametrize(
    ("choices", "received"),
    [
        ({"draw": "stratified", "shots": (1,)}, "--draw stratified"),
        ({"methods": ("full",)}, "a --method that trains through the encoder"),
    ],
)
def test_control_labels_are_for_frozen_heads_on_the_same_examples(
    corpus_store: Callable[[str], Store], choices: dict[str, Any], received: str
) -> None:
    with pytest.raises(UsageError, match="--control compares heads over a frozen encoder") as caught:
        expand(corpus_store("tokens"), task="tagging", fusions=["last"], control=True, **choices)
    assert caught.value.received == received


def test_a_pair_has_a_control_label_of_both_its_texts(make_store: Callable[..., Store]) -> None:
    words = ("rain", "snow", "hail", "sun", "wind", "fog")
    rows = [
        {"sentence1": one, "sentence2": other, "label": "less" if one < other else "more"}
        for one in words for other in words
    ]  # fmt: skip
    store = make_store("mean", train=rows, validation=rows[:4])
    [_, spec] = expand(store, label="label", fusions=["last"], control=True)
    assert spec.task == "pair-classification"
    pool = sorted(row["label"] for row in rows)
    wanted = [control_label("label", f"{row['sentence1']}\0{row['sentence2']}", pool) for row in rows]
    assert SweepContext(store).load(spec).train.gold == wanted
    assert len(set(wanted)) == 2
    assert any(len(set(wanted[at : at + 6])) == 2 for at in range(0, 36, 6))  # not by the first text alone
