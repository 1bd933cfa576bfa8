"""An estimator's weights are those of ``fusionkit fit`` with the same options over the same rows, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit import FusionClassifier, FusionRegressor, FusionTagger
from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import predict
from fusionkit.store import Store

KINDS = {"classification": FusionClassifier, "tagging": FusionTagger, "regression": FusionRegressor}
OPTIONS: dict[str, Any] = {
    "lr": 5e-3, "weight_decay": 0.1, "dropout": 0.2, "optimizer": "adam", "schedule": "cosine", "warmup": 0.2,
    "clip_norm": 0.5, "patience": 2,
}  # fmt: skip
WEIGHED = {**OPTIONS, "label_smoothing": 0.1, "class_weight": "balanced"}
# rows, task, fusion, options
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("mean", "classification", "attention", {"max_steps": 7}),
    ("mean", "classification", "linear", WEIGHED),
    ("mean", "classification", "concat", {"fusion_layers": "1,5"}),
    ("tokens", "classification", "linear", {"pool": "mean"}),
    ("tokens", "classification", "dwatt", {"pool": "max"}),
    ("tokens", "classification", "extra-layers:1", {"pool": "cls"}),
    ("words", "tagging", "attention", WEIGHED),
    ("words", "tagging", "linear", {"head": "crf"}),
    ("words", "tagging", "flat:8", {"head": "linear-tagger"}),
    ("mean", "regression", "linear:gamma=no", OPTIONS),
    ("mean", "regression", "layer:3", {}),
]

LONG: tuple[str, str, str, dict[str, Any]] = ("tokens", "classification", "last", {"head": "bcn"})


def labels_of(store: Store, split: str, task: str) -> Any:
    frame = store[split].examples
    return frame["slots" if task == "tagging" else "number" if task == "regression" else "intent"]


@pytest.fixture(scope="module")
def numbered(store_of: Callable[[str], Store]) -> Callable[[str], Store]:
    """The stores with a column of numbers in their examples: the length of each sentence over 7."""

    def get(rows: str) -> Store:
        store = store_of(rows)
        for split in store.splits:
            frame = store[split].examples
            frame["number"] = [len(words) / 7 for words in frame["tokens"]]
        return store

    return get


@pytest.mark.parametrize(
    "case",
    [*CASES, pytest.param(LONG, marks=pytest.mark.soak("products"))],
    ids=lambda case: "-".join(map(str, case[:3])),
)
def test_an_estimator_is_the_run_with_its_options(
    numbered: Callable[[str], Store], tmp_path: Path, case: tuple[str, str, str, dict[str, Any]]
) -> None:
    rows, task, fusion, options = case
    store = numbered(rows)
    epochs = 1 if options.get("head") == "bcn" else 3  # its LSTMs take ten times as long
    asked = {"epochs": epochs, "validation_fraction": 0.1, "random_state": 1, "batch_size": 16, **options}
    given = {("class_weights" if name == "class_weight" else name): value for name, value in options.items()}
    rates, layers = (given.pop("lr", 2e-3),), (given.pop("fusion_layers", None),)
    label = {"tagging": "slots", "regression": "number", "classification": "intent"}[task]
    specs = expand(
        store, task=task, label=label, fusions=[fusion], seeds=2, epochs=(epochs,), batch_sizes=(16,),
        lrs=rates, fusion_layers=layers, **given,
    )  # fmt: skip
    records = fit(store, specs[1:], RunsFolder(tmp_path))
    run = open_run(tmp_path / specs[1].digest)
    y = labels_of(store, "train", task)
    for given_as in (store["train"], store["train"].take(np.arange(40))):
        found: Any = KINDS[task](fusion, **asked).fit(given_as, y)
        wanted = run.model.state_dict()
        assert {*found.model_.state_dict()} == {*wanted}
        assert all(torch.equal(found.model_.state_dict()[name], weights) for name, weights in wanted.items())
        assert found.best_iter_ == records[0]["best_epoch"]
        assert found.loss_curve_ == [epoch["loss"] for epoch in records[0]["curve"]]
        assert found.validation_scores_ == [epoch["validation_score"] for epoch in records[0]["curve"]]
        weights = records[0]["layer_weights"]
        assert found.layer_weights_ is None if weights is None else found.layer_weights_.tolist() == weights
    data = load_task(store, *choose_task(store, task, label), run.spec.pool, run.sees_examples, run.spec.head == "bcn")
    assert data.test is not None
    places = tuple(store.layers.index(layer) for layer in run.layers)
    answers = predict(run.model, data, data.test, places)
    if task == "regression":
        np.testing.assert_allclose(found.predict(store["test"]), answers, rtol=1e-5)
    else:
        assert list(found.predict(store["test"])) == answers


def test_without_a_share_for_validation_all_examples_are_learned_and_the_last_epoch_counts(
    store_of: Callable[[str], Store],
) -> None:
    train = store_of("mean")["train"]
    found = FusionClassifier("linear", epochs=20, lr=5e-3).fit(train, train.examples["intent"])
    assert (found.n_iter_, found.best_iter_, found.validation_scores_) == (20, 20, None)
    more = FusionClassifier("linear", epochs=3, schedule="constant").fit(train, train.examples["intent"])
    fewer = FusionClassifier("linear", epochs=2, schedule="constant").fit(train, train.examples["intent"])
    assert more.loss_curve_[:2] == fewer.loss_curve_
    assert found.score(train, train.examples["intent"]) > 0.8
