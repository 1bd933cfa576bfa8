"""Regression: numbers as targets, their correlation as score, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import class_names, load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import DataError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.decisions import predict, score
from fusionkit.fit.train.loop import train_run
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

MakeStore = Callable[..., Store]
Toy = Callable[..., TaskData]
Rows = list[dict[str, Any]]
WORDS = ("soup", "rain", "harbour", "violin", "marathon", "window", "sheep", "engine")


def pairs(numbers: list[Any], start: int = 0) -> Rows:
    return [
        {"sentence1": f"the {WORDS[(start + i) % 8]}", "sentence2": f"a {WORDS[(start + 3 * i) % 8]}", "score": number}
        for i, number in enumerate(numbers)
    ]


TRAIN, VALIDATION, TEST = [2.5, 0.0, 5.0, 3.2, 1.4, 4.75], [1.0, 2.0, 4.5], [0.5, 3.0, 2.2]


@pytest.fixture(scope="module")
def store(make_store: MakeStore) -> Store:
    return make_store("mean", train=pairs(TRAIN), validation=pairs(VALIDATION, 1), test=pairs(TEST, 2))


def spec_of(**fields: Any) -> RunSpec:
    given = {"store": "s", "task": "regression", "label": "score", "fusion": "layer:1", "head": "regressor"}
    return RunSpec(**{**given, **fields})


@pytest.fixture
def numbers(toy: Toy) -> TaskData:
    """Toy states whose number is a sum of two of layer 1's, plus 3."""
    data = toy(gap=0.0, examples=300)
    splits = []
    for split in (data.train, data.validation, data.test):
        assert split is not None
        states = split.states.gather(np.arange(split.states.shape[0]))[:, 1].numpy()
        targets = (3 + states[:, 2] - states[:, 4]).astype(np.float32)
        splits.append(replace(split, targets=targets, gold=[float(target) for target in targets]))
    return TaskData(TASKS["regression"], "x", None, [], 1, "", splits[0], splits[1], splits[2])


def test_numbers_are_targets_as_they_are(store: Store) -> None:
    task, label = choose_task(store, None, None)
    data = load_task(store, task, label, None)
    assert (task.name, label, data.labels, data.classes) == ("regression", "score", [], 1)
    for split, wanted in ((data.train, TRAIN), (data.validation, VALIDATION), (data.test, TEST)):
        assert split is not None
        assert split.gold == wanted
        batch = split.batch(np.array([2, 0]), (0,))
        assert batch.targets.dtype == torch.float32
        assert torch.equal(batch.targets, torch.tensor([wanted[2], wanted[0]]))
    assert data.notes == []


def test_a_linear_number_is_learned(numbers: TaskData) -> None:
    outcome = train_run(spec_of(epochs=20), numbers, (1,), 6, lambda: None)
    assert outcome.metric == "pearson"
    assert outcome.score is not None
    assert outcome.score > 0.99
    assert outcome.scores["test"]["spearman"] > 0.99
    assert outcome.curve[-1]["loss"] < 0.05 < outcome.curve[0]["loss"]  # of a variance of 2
    assert outcome.head_parameters == (6 * 256 + 256) + (256 * 256 + 256) + (256 + 1)  # the classifier's, one output


def test_the_scores_are_scipys_of_the_kept_weights_numbers(numbers: TaskData) -> None:
    outcome = train_run(spec_of(epochs=2), numbers, (1,), 6, lambda: None)
    assert numbers.test is not None
    at = numbers.test.states.gather(np.arange(numbers.test.states.shape[0]))[:, 1]
    for layer in (0, 3):
        weight, bias = (outcome.weights[f"head.score.{layer}.{kind}"] for kind in ("weight", "bias"))
        at = torch.relu(at @ weight.T + bias)
    found = (at @ outcome.weights["head.score.6.weight"].T + outcome.weights["head.score.6.bias"])[:, 0].numpy()
    assert outcome.score == pytest.approx(float(stats.pearsonr(numbers.test.gold, found).statistic), abs=1e-6)
    wanted = float(stats.spearmanr(numbers.test.gold, found).statistic)
    assert outcome.scores["test"]["spearman"] == pytest.approx(wanted, abs=1e-4)


def test_the_loss_of_the_curve_is_the_mean_squared_error(numbers: TaskData) -> None:
    """At a rate that changes nothing, the fresh weights' error, over the one batch of all examples."""
    outcome = train_run(spec_of(epochs=1, lr=1e-20, batch_size=1000), numbers, (1,), 6, lambda: None)
    at = numbers.train.states.gather(np.arange(numbers.train.states.shape[0]))[:, 1]
    for layer in (0, 3, 6):
        at = at @ outcome.weights[f"head.score.{layer}.weight"].T + outcome.weights[f"head.score.{layer}.bias"]
        at = torch.relu(at) if layer < 6 else at
    error = sum((float(a) - b) ** 2 for a, b in zip(at[:, 0], numbers.train.gold, strict=True)) / 300
    assert outcome.curve[0]["loss"] == pytest.approx(error, rel=1e-5)


def test_a_regressor_that_says_one_number_scores_zero(numbers: TaskData) -> None:
    model = build_model(spec_of(), 1, 6, 0)
    with torch.no_grad():
        list(model.head.parameters())[-2].zero_()  # the weight of the last map
    assert len(set(predict(model, numbers, numbers.validation, (1,)))) == 1
    assert score(model, numbers, numbers.validation, (1,)) == {"pearson": 0.0, "spearman": 0.0}  # and no warning


def test_a_sweep_over_numbers_is_kept_like_any_other(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, fusions=("last", "linear"), seeds=2, epochs=(2,), shots=(None, 4))
    records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert [record["status"] for record in records] == ["finished"] * 8
    assert {record["metric"] for record in records} == {"pearson"}
    assert [record["score"] for record in records] == [record["scores"]["test"]["pearson"] for record in records]
    assert [len(record["draw"] or ()) for record in records] == [0, 0, 4, 4] * 2  # a shot is an example
    weights = load_file(tmp_path / "runs" / specs[0].digest / "weights.safetensors")
    assert list(weights["head.score.6.weight"].shape) == [1, 256]


@pytest.mark.parametrize(
    ("option", "named"), [({"label_smoothing": 0.1}, "label-smoothing"), ({"class_weights": "balanced"}, "weights")]
)
def test_options_of_classes_are_refused(store: Store, option: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"head 'regressor' cannot use --.*{named}"):
        expand(store, fusions=("last",), **option)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_missing_number_is_refused_with_its_example(make_store: MakeStore, split: str) -> None:
    splits = {name: pairs(TRAIN) for name in ("train", "validation", "test")}
    splits[split] = pairs([1.5, 2.0, None, 3.5, None, 1.0])
    broken = make_store("mean", **splits)
    with pytest.raises(DataError, match=f"{split}, example 2: no number in 'score'") as caught:
        load_task(broken, *choose_task(broken, "regression", "score"), None)
    assert caught.value.received == "nan; none in 2 of 6 examples"
    assert "encode again" in (caught.value.remedy or "")


def test_a_split_without_any_number_is_not_used(make_store: MakeStore) -> None:
    notes = {None: "test has no labels: not used", -1.0: "test: all of its numbers are -1: it is left out"}
    for number, note in notes.items():
        blind = [{**row, "score": number} for row in pairs(TEST)]
        some = make_store("mean", train=pairs(TRAIN), validation=pairs(VALIDATION), test=blind)
        data = load_task(some, *choose_task(some, None, None), None)
        assert data.test is None
        assert note in data.notes


def test_one_number_throughout_is_nothing_to_learn(make_store: MakeStore) -> None:
    same = make_store("mean", train=pairs([2.5] * 4))
    with pytest.raises(UsageError, match="column 'score' of train has fewer than two different numbers") as caught:
        load_task(same, *choose_task(same, None, None), None)
    assert caught.value.received == "2.5"


def test_numbers_that_differ_in_a_late_digit_are_different() -> None:
    assert class_names([1000000.1, 1000000.2], TASKS["regression"], "score") == []


def test_tokens_are_pooled_for_a_number_as_for_a_class(make_store: MakeStore) -> None:
    tokens = make_store("tokens", train=pairs(TRAIN), validation=pairs(VALIDATION))
    specs = expand(tokens, fusions=("last",), epochs=(1,))
    assert specs[0].pool == "mean"
    data = load_task(tokens, TASKS["regression"], "score", "mean")
    lengths = [b - a for a, b in pairwise(data.train.offsets)]
    assert min(lengths) > 2
    assert math.isfinite(train_run(specs[0], data, (6,), 384, lambda: None).curve[0]["loss"])
