"""From scores back to labels: in the examples' order, words without rows as the default, unseen labels as errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import Coding, TaskData
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.fit.train import code_length, decisions, layer_weights
from fusionkit.fit.train.code_length import code_scores
from fusionkit.fit.train.decisions import predict, score
from fusionkit.fit.train.layer_weights import row_weights
from fusionkit.specs import RunSpec
from fusionkit.store import Store

NO_TOKEN, CUT = [(2, 1)], [(4, 7), (4, 8), (4, 9)]  # (example, word) of the training split


def model_for(data: TaskData, head: str, pool: str | None = None) -> FusedModel:
    spec = RunSpec(store="s", task=data.task.name, label=data.label, fusion="linear", head=head, pool=pool, init_seed=5)
    return build_model(spec, 2, 384, len(data.labels)).eval()


@pytest.fixture
def tagged(corpus_store: Callable[[str], Store]) -> TaskData:
    store = corpus_store("words")
    return load_task(store, *choose_task(store, "tagging", None), None)


@pytest.mark.parametrize("head", ["tagger", "linear-tagger", "crf"])
def test_every_word_gets_a_tag_and_words_without_rows_the_default(tagged: TaskData, head: str) -> None:
    model = model_for(tagged, head)
    with torch.no_grad():  # a model that never says O
        for name, parameter in model.named_parameters():
            if name in ("head.score.6.bias", "head.score.1.bias"):
                parameter[tagged.labels.index("O")] = -100.0
    found = predict(model, tagged, tagged.train, (1, 5))
    assert [len(tags) for tags in found] == [len(tags) for tags in tagged.train.gold] == [3, 3, 5, 1, 10, 0, 1, 3]
    default = [(i, w) for i, tags in enumerate(found) for w, tag in enumerate(tags) if tag == "O"]
    assert default == NO_TOKEN + CUT
    assert {tag for tags in found for tag in tags} <= set(tagged.labels)


@pytest.mark.parametrize("head", ["tagger", "linear-tagger"])
def test_each_words_tag_is_the_best_of_its_own_row(tagged: TaskData, head: str) -> None:
    model = model_for(tagged, head)
    batch = tagged.train.batch(np.arange(len(tagged.train)), (1, 5))
    with torch.no_grad():
        best = iter(model(batch.states, batch.offsets).argmax(1).tolist())
    without = set(NO_TOKEN + CUT)
    expected = [
        ["O" if (i, w) in without else tagged.labels[next(best)] for w in range(len(tags))]
        for i, tags in enumerate(tagged.train.gold)
    ]
    assert predict(model, tagged, tagged.train, (1, 5)) == expected
    assert next(best, None) is None


@pytest.mark.parametrize("head", ["tagger", "linear-tagger", "crf"])
def test_each_example_is_predicted_as_if_it_were_alone(
    tagged: TaskData, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_for(tagged, head)
    alone = [predict(model, tagged, tagged.train.subset(np.array([i])), (1, 5))[0] for i in range(len(tagged.train))]
    for rows in (1, 4, 4096):  # blocks of one example, of a few, of all
        monkeypatch.setattr(decisions, "BLOCK_ROWS", rows)
        assert predict(model, tagged, tagged.train, (1, 5)) == alone
    assert len({tag for tags in alone for tag in tags}) > 1


def test_a_model_is_scored_in_full_float32(tagged: TaskData, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the LSTM of a GPU rounds its factors to 11 bits."""
    model, inside, seen = model_for(tagged, "tagger"), False, list[bool]()
    fusion: Any = model.fusion
    weights_of = fusion.layer_weights

    @contextmanager
    def full(device: torch.device) -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    def noted(states: Tensor) -> Any:
        seen.append(inside)
        return weights_of(states)

    for module in (code_length, decisions, layer_weights):
        monkeypatch.setattr(module, "full_float32", full)
    monkeypatch.setattr(fusion, "layer_weights", noted)
    model.head.register_forward_pre_hook(lambda *_: seen.append(inside))
    predict(model, tagged, tagged.train, (1, 5))
    code_scores(model, [tagged.train.batch(np.arange(2), (1, 5))], Coding(1.0, 0.0), False)
    row_weights(model, tagged.train, (1, 5))
    assert seen == [True, True, True]


@pytest.mark.parametrize(("rows", "pool"), [("mean", None), ("tokens", "mean"), ("tokens", "cls"), ("words", "max")])
def test_labels_are_the_best_classes_in_the_examples_order(
    rows: str, pool: str | None, corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = corpus_store(rows)
    data = load_task(store, *choose_task(store, "classification", None), pool)
    model = model_for(data, "classifier", pool)
    expected = []
    with torch.no_grad():
        for example in range(len(data.train)):
            batch = data.train.batch(np.array([example]), (1, 5))
            expected.append(data.labels[int(model(batch.states, batch.offsets)[0].argmax())])
    for size in (2, 4096):
        monkeypatch.setattr(decisions, "BLOCK_ROWS", size)
        assert predict(model, data, data.train, (1, 5)) == expected


def test_a_label_that_train_lacks_is_an_error_in_every_score(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("mean")
    data = load_task(store, *choose_task(store, "classification", None), None)
    assert data.test is not None
    found: list[Any] = predict(model_for(data, "classifier"), data, data.test, (1, 5))
    assert data.test.gold[2] == "sport"
    right = sum(g == p for g, p in zip(data.test.gold[:2], found[:2], strict=True))
    assert score(model_for(data, "classifier"), data, data.test, (1, 5))["accuracy"] == pytest.approx(right / 3)
