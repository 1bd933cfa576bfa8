"""Training one run: what it learns, what its seeds decide, which weights it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit.train.loop import train_run
from fusionkit.fit.train.result import DivergenceError, RunResult
from fusionkit.specs import SCHEDULES, RunSpec

Toy = Callable[..., TaskData]
ALL = (0, 1, 2)
HIDDEN = 6


def run_spec(data: TaskData, **fields: Any) -> RunSpec:
    head = data.task.heads[0]
    return RunSpec(**{"store": "s", "task": data.task.name, "label": "x", "fusion": "linear", "head": head} | fields)


def train(spec: RunSpec, data: TaskData, layers: tuple[int, ...] = ALL) -> RunResult:
    return train_run(spec, data, layers, HIDDEN, lambda: None)


def same_weights(one: RunResult, other: RunResult) -> list[bool]:
    assert one.weights.keys() == other.weights.keys()
    return [torch.equal(one.weights[name], other.weights[name]) for name in one.weights]


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("fusion", ["linear", "concat", "attention"])
def test_a_separable_problem_is_learned(toy: Toy, words: bool, fusion: str) -> None:
    data = toy(words=words, examples=300)
    outcome = train(run_spec(data, fusion=fusion, epochs=20), data)
    assert outcome.validation_score == 1.0
    assert outcome.best_epoch == [point["validation_score"] for point in outcome.curve].index(1.0) + 1  # the first
    assert outcome.score is not None
    assert outcome.score >= 0.995
    assert outcome.metric == "accuracy"
    assert outcome.curve[-1]["loss"] < 0.05 < outcome.curve[0]["loss"]


@pytest.mark.parametrize("words", [False, True])
def test_labels_of_chance_are_not_learned(toy: Toy, words: bool) -> None:
    data = toy(words=words, learnable=False)
    outcome = train(run_spec(data, epochs=5), data)
    assert outcome.score is not None
    assert data.test is not None
    # Four standard deviations of a coin's share of heads.
    assert abs(outcome.score - 0.5) < 4 * 0.5 / math.sqrt(len(data.test.targets))


@pytest.mark.parametrize("head", ["tagger", "linear-tagger", "crf"])
def test_each_tagging_head_learns(toy: Toy, head: str) -> None:
    data = toy(words=True, examples=200)
    outcome = train(run_spec(data, head=head, epochs=20, lr=1e-2), data)
    assert outcome.score is not None
    assert outcome.score > 0.98


@pytest.mark.parametrize("words", [False, True])
def test_the_same_seeds_give_the_same_run(toy: Toy, words: bool) -> None:
    data = toy(words=words)
    spec = run_spec(data, dropout=0.2, epochs=3, shots=20, data_seed=3, init_seed=4)
    torch.manual_seed(1)
    first = train(spec, data)
    torch.manual_seed(2)
    again = train(spec, data)
    assert all(same_weights(first, again))
    unlike = {"seconds", "epoch_seconds", "weights", "answers"}
    fields = set(first.__dataclass_fields__) - unlike
    assert [getattr(first, name) for name in sorted(fields)] == [getattr(again, name) for name in sorted(fields)]
    assert {"score", "curve", "steps", "draw"} <= fields


def test_another_init_seed_gives_other_weights_on_the_same_draw(toy: Toy) -> None:
    data = toy()
    spec = run_spec(data, epochs=2, shots=20)
    first, other = train(spec, data), train(replace(spec, init_seed=1), data)
    assert not any(same_weights(first, other)[2:])  # all of the head's; the fusion starts without chance
    assert first.draw == other.draw


def test_another_data_seed_gives_another_draw_from_the_same_weights(toy: Toy) -> None:
    data = toy()
    spec = run_spec(data, epochs=1, lr=1e-20, shots=20)
    first, other = train(spec, data), train(replace(spec, data_seed=1), data)
    # Such a rate leaves them as they began.
    assert all(torch.allclose(first.weights[name], other.weights[name], rtol=0, atol=1e-12) for name in first.weights)
    assert first.draw != other.draw


def test_the_draw_is_kept_by_the_ids_of_its_examples(toy: Toy) -> None:
    data = toy()
    outcome = train(run_spec(data, epochs=1, shots=10, data_seed=6), data)
    drawn = np.random.default_rng([6, 1]).choice(60, 10 * 2, replace=False)  # two classes
    assert outcome.draw == [f"train-{i}" for i in sorted(drawn)]
    assert train(run_spec(data, epochs=1), data).draw is None


def test_the_draw_is_the_same_for_every_method(toy: Toy) -> None:
    data = toy()
    base = run_spec(data, epochs=1, shots=10, data_seed=6)
    fields: list[dict[str, Any]] = [
        {"fusion": "concat"}, {"lr": 1.0}, {"init_seed": 3}, {"epochs": 2}, {"batch_size": 5}, {"dropout": 0.5},
    ]  # fmt: skip
    draws = [train(replace(base, **changed), data).draw for changed in fields]
    assert draws == [train(base, data).draw] * 6


def test_a_draw_larger_than_train_is_refused(toy: Toy) -> None:
    data = toy()
    with pytest.raises(UsageError, match="the training split is smaller than the draw") as caught:
        train(run_spec(data, shots=31), data)
    assert caught.value.received == "31 shots × 2 classes = 62"


def plain_forward(weights: dict[str, Tensor], split: TaskSplit) -> list[int]:
    """The classes that a scalar mix under two feed-forward layers gives, written out."""
    states = split.states.gather(np.arange(split.states.shape[0]))  # [rows, layers, hidden]
    mix = weights["fusion.gamma"] * torch.softmax(weights["fusion.weight"], 0)
    at = mix[0] * states[:, 0] + mix[1] * states[:, 1] + mix[2] * states[:, 2]
    for step in (0, 3):
        at = torch.relu(at @ weights[f"head.score.{step}.weight"].T + weights[f"head.score.{step}.bias"])
    scores = at @ weights["head.score.6.weight"].T + weights["head.score.6.bias"]
    return [int(k) for k in scores.argmax(1)]


@pytest.mark.parametrize("words", [False, True])
def test_the_best_epochs_weights_are_kept_and_give_the_scores(toy: Toy, words: bool) -> None:
    data = toy(words=words, learnable=False)  # chance makes the validation score go up and down
    outcome = train(run_spec(data, epochs=8, lr=1e-2, init_seed=3), data)
    curve = [point["validation_score"] for point in outcome.curve]
    assert [point["epoch"] for point in outcome.curve] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert outcome.validation_score == max(curve) > curve[-1]
    assert outcome.best_epoch == curve.index(max(curve)) + 1
    assert data.test is not None
    for split, score in ((data.validation, outcome.validation_score), (data.test, outcome.score)):
        right = [
            found == wanted for found, wanted in zip(plain_forward(outcome.weights, split), split.targets, strict=True)
        ]
        assert sum(right) / len(right) == pytest.approx(score, abs=1e-12)


class PlainLinear(nn.Module):
    """Scalar mix and feed-forward layers as anyone would write them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.w, self.gamma = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.tensor(1.0))
        self.one, self.two, self.out = nn.Linear(HIDDEN, 256), nn.Linear(256, 256), nn.Linear(256, 2)
        self.drop = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        mixed = self.gamma * (torch.softmax(self.w, 0).view(1, 3, 1) * states).sum(1)
        hidden = self.drop(torch.relu(self.one(mixed)))
        found: Tensor = self.out(self.drop(torch.relu(self.two(hidden))))
        return found


def plain_loop(spec: RunSpec, split: TaskSplit) -> PlainLinear:
    """Two epochs of AdamW over minibatches of whole examples, one parameter step at a time."""
    torch.manual_seed(spec.init_seed)
    model = PlainLinear(spec.dropout)
    torch.manual_seed(spec.init_seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, foreach=False)
    states, step = split.states.gather(np.arange(split.states.shape[0])), 0
    steps = 2 * math.ceil(len(split) / spec.batch_size)
    for epoch in (1, 2):
        order = np.random.default_rng([spec.data_seed, 2, epoch]).permutation(len(split))
        for start in range(0, len(order), spec.batch_size):
            rows = [
                row
                for example in order[start : start + spec.batch_size]
                for row in range(split.offsets[example], split.offsets[example + 1])
            ]
            for group in optimizer.param_groups:
                left = (steps - step) / steps
                half_wave = (1 - math.cos(math.pi * left)) / 2
                group["lr"] = spec.lr * {"linear": left, "cosine": half_wave, "constant": 1.0}[spec.schedule]
            scores = torch.log_softmax(model(states[rows]), 1)
            loss = -scores[range(len(rows)), split.targets[rows].tolist()].sum() / len(rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
    assert step == steps
    return model


NAMES = {
    "fusion.weight": "w", "fusion.gamma": "gamma", "head.score.0.weight": "one.weight", "head.score.0.bias": "one.bias",
    "head.score.3.weight": "two.weight", "head.score.3.bias": "two.bias", "head.score.6.weight": "out.weight",
    "head.score.6.bias": "out.bias",
}  # fmt: skip


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_epochs_give_the_weights_of_a_plain_loop(toy: Toy, words: bool, schedule: str) -> None:
    data = toy(words=words, gap=1.0)
    spec = run_spec(
        data,
        epochs=2,
        batch_size=7,
        lr=1e-4,
        weight_decay=0.1,
        dropout=0.2,
        schedule=schedule,
        data_seed=5,
        init_seed=8,
    )
    outcome = train(spec, data)
    assert outcome.best_epoch == 2
    expected = plain_loop(spec, data.train).state_dict()
    assert set(outcome.weights) == set(NAMES)
    for ours, theirs in NAMES.items():
        assert torch.allclose(outcome.weights[ours], expected[theirs], rtol=0, atol=1e-6), ours
    for other in set(SCHEDULES) - {schedule}:
        weight = train(replace(spec, schedule=other), data).weights["head.score.0.weight"]
        assert not torch.allclose(outcome.weights["head.score.0.weight"], weight, rtol=0, atol=2e-5)


def test_a_rate_that_blows_up_is_an_error_with_a_remedy(toy: Toy) -> None:
    data = toy()
    with pytest.raises(DivergenceError, match=r"loss of linear \+ classifier is no longer finite") as caught:
        train(run_spec(data, lr=99.0, weight_decay=50.0, epochs=20), data)
    assert caught.value.exit_code == 1
    assert "smaller --lr" in (caught.value.remedy or "")
