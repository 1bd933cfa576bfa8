"""The options of training: each does what its formula says, and is refused where a head cannot use it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import transformers
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit import RunGroups, RunsFolder, expand, fit, summarise
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.decisions import score
from fusionkit.fit.train.inputs import training_split
from fusionkit.fit.train.loop import train_run, train_unit
from fusionkit.fit.train.result import RunResult
from fusionkit.fit.train.schedule import balanced_weights, check_rate, rate_factor
from fusionkit.fit.vectorized.adam import clipped, limits_of
from fusionkit.options.entry import options_of
from fusionkit.specs import SCHEDULES, RunSpec
from fusionkit.store import Store
from tests.machine.multiplied import Multiplied

Toy = Callable[..., TaskData]
HIDDEN, WIDTH = 6, 256


def run_spec(data: TaskData, **fields: Any) -> RunSpec:
    head = data.task.heads[0]
    return RunSpec(**{"store": "s", "task": data.task.name, "label": "x", "fusion": "layer:1", "head": head} | fields)


def train(spec: RunSpec, data: TaskData) -> RunResult:
    return train_run(spec, data, (1,), HIDDEN, lambda: None)


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.25, 0.99])
@pytest.mark.parametrize("steps", [1, 7, 40])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_of_each_step_is_that_of_transformers(schedule: str, steps: int, warmup: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    theirs: dict[str, Callable[..., Any]] = {
        "linear": transformers.get_linear_schedule_with_warmup,
        "cosine": transformers.get_cosine_schedule_with_warmup,
        "constant": lambda optimizer, warm, _: transformers.get_constant_schedule_with_warmup(optimizer, warm),
    }
    rate = theirs[schedule](optimizer, math.ceil(warmup * steps), steps)
    spec = RunSpec(
        store="s", task="t", label="l", fusion="last", head="tagger", lr=0.5, schedule=schedule, warmup=warmup
    )
    for step in range(steps):
        assert spec.lr * rate_factor(spec, step, steps) == pytest.approx(rate.get_last_lr()[0], rel=1e-12, abs=1e-15)
        optimizer.step()
        rate.step()


def test_the_rates_that_stand_in_the_formulas() -> None:
    spec = RunSpec(store="s", task="t", label="l", fusion="last", head="tagger", warmup=0.25, schedule="cosine")
    found = [rate_factor(spec, step, 8) for step in range(9)]
    wave = [(1 + math.cos(math.pi * k / 6)) / 2 for k in range(7)]
    assert found == pytest.approx([0.0, 0.5, *wave], abs=1e-15)
    assert len(SCHEDULES) == 3


def gradients(model: torch.nn.Module) -> list[Tensor]:
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(found) == 6
    return found


def adam_loop(spec: RunSpec, data: TaskData) -> list[Tensor]:
    """Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019) written out: the weights after each epoch."""
    torch.manual_seed(spec.init_seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(HIDDEN, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, 2),
    ).double()  # fmt: skip
    states = data.train.states.gather(data.train.rows)[:, 1].double()
    targets = torch.from_numpy(np.asarray(data.train.targets))
    counts = np.bincount(data.train.targets)
    of_class = torch.tensor(counts.sum() / (2 * counts) if spec.class_weights == "balanced" else [1.0, 1.0]).double()
    first, second = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    step, found = 0, list[Tensor]()
    steps = spec.max_steps or spec.epochs * math.ceil(len(data.train) / spec.batch_size)
    for epoch in count(1):
        if step == steps:
            return found
        order = np.random.default_rng([spec.data_seed, 2, epoch]).permutation(len(data.train))
        for start in range(0, len(order), spec.batch_size):
            if step == steps:
                break
            rows = order[start : start + spec.batch_size]
            model.zero_grad()
            log_p = torch.log_softmax(model(states[rows]), 1)
            wanted = torch.full((len(rows), 2), spec.label_smoothing / 2, dtype=torch.float64)
            wanted[range(len(rows)), targets[rows]] += 1 - spec.label_smoothing
            loss = -(wanted * of_class * log_p).sum() / of_class[targets[rows]].sum()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients(model)))
            shrink = min(1.0, spec.clip_norm / norm) if spec.clip_norm else 1.0
            warm = math.ceil(spec.warmup * steps)
            lr = spec.lr * (step / warm if step < warm else (steps - step) / (steps - warm))
            step += 1
            with torch.no_grad():
                for p, grad, m, v in zip(model.parameters(), gradients(model), first, second, strict=True):
                    g = shrink * grad
                    if spec.optimizer == "adam":
                        g = g + spec.weight_decay * p
                    else:
                        p.sub_(lr * spec.weight_decay * p)
                    m.copy_(0.9 * m + 0.1 * g)
                    v.copy_(0.999 * v + 0.001 * g**2)
                    p.sub_(lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8))
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]).float())
    raise AssertionError


def flat(outcome: RunResult) -> Tensor:
    names = [f"head.score.{layer}.{kind}" for layer in (0, 3, 6) for kind in ("weight", "bias")]
    assert set(names) == set(outcome.weights)
    return torch.cat([outcome.weights[name].flatten() for name in names])


OPTIONS: dict[str, dict[str, Any]] = {
    "adamw with decay": {"weight_decay": 0.5},
    "adam with decay, which is L2": {"optimizer": "adam", "weight_decay": 0.5},
    "warm-up": {"warmup": 0.3},
    "clipped": {"clip_norm": 0.1},
    "smoothed": {"label_smoothing": 0.2},
    "balanced": {"class_weights": "balanced"},
    "eight steps of five an epoch": {"max_steps": 8, "validate_every": 9},
    "all of them": {
        "optimizer": "adam", "weight_decay": 0.5, "warmup": 0.3, "clip_norm": 0.1, "label_smoothing": 0.2,
        "class_weights": "balanced",
    },
}  # fmt: skip


@pytest.fixture
def skewed(toy: Toy) -> TaskData:
    """Twice as many training examples of one class as of the other."""
    data = toy(gap=0.0, examples=60)
    classes = [np.flatnonzero(data.train.targets == k) for k in (0, 1)]
    return replace(data, train=data.train.subset(np.concatenate([classes[0][:20], classes[1][:10]])))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_gives_the_weights_of_its_formula(skewed: TaskData, name: str) -> None:
    plain = run_spec(skewed, epochs=3, batch_size=7, lr=1e-3, init_seed=8)
    spec = replace(plain, **OPTIONS[name])
    outcome = train(spec, skewed)
    expected = adam_loop(spec, skewed)[outcome.best_epoch - 1]
    torch.testing.assert_close(flat(outcome), expected, rtol=0, atol=1e-5)
    others = [adam_loop(plain, skewed)[outcome.best_epoch - 1]]
    if "decay" in name:  # the two kinds of decay are two
        others.append(adam_loop(replace(spec, optimizer={"adam": "adamw"}.get(spec.optimizer, "adam")), skewed)[-1])
    assert all((flat(outcome) - other).abs().max() > 1e-4 for other in others)


def test_adam_and_adamw_without_decay_are_one(skewed: TaskData) -> None:
    spec = run_spec(skewed, epochs=2)
    assert torch.equal(flat(train(spec, skewed)), flat(train(replace(spec, optimizer="adam"), skewed)))


def test_a_norm_that_no_gradient_reaches_clips_nothing(skewed: TaskData) -> None:
    spec = run_spec(skewed, epochs=2)
    assert torch.equal(flat(train(spec, skewed)), flat(train(replace(spec, clip_norm=1e6), skewed)))


@pytest.mark.parametrize("targets", [[0, 1, 1, 1, 2, 2], [0] * 5, [2, 0, 0, 2, 2]])
def test_balanced_weights_are_those_of_scikit_learn(targets: list[int]) -> None:
    found = balanced_weights(np.array(targets), 4).tolist()
    present = sorted(set(targets))
    theirs = compute_class_weight("balanced", classes=np.array(present), y=np.array(targets))
    assert [found[k] for k in present] == pytest.approx(theirs.tolist())
    assert all(found[k] == 0 for k in range(4) if k not in present)


def test_the_weights_of_a_draw_are_the_draws(toy: Toy) -> None:
    """Few-shot runs balance what they train on, not the split it was drawn from."""
    data = toy(gap=0.0)
    spec = run_spec(data, shots=3, epochs=1, data_seed=2, class_weights="balanced")
    drawn = np.sort(np.random.default_rng([2, 1]).choice(60, 6, replace=False))
    alone = replace(data, train=data.train.subset(drawn))
    assert 0 < sum(alone.train.targets) != 3
    assert torch.equal(flat(train(spec, data)), flat(train(replace(spec, shots=None), alone)))


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_a_run_stops_when_its_patience_ends_and_keeps_the_best_epoch(toy: Toy, patience: int) -> None:
    data = toy(learnable=False)  # chance makes the validation score go up and down
    spec = run_spec(data, epochs=30, lr=1e-2, init_seed=3, schedule="constant")
    seen: list[None] = []
    whole = train(spec, data)
    stopped = train_run(replace(spec, patience=patience), data, (1,), HIDDEN, lambda: seen.append(None))
    scores = [point["validation_score"] for point in whole.curve]
    best = last = 0
    for last in range(1, 30):
        best = last if scores[last] > scores[best] else best
        if last - best == patience:
            break
    assert last + 1 < 30
    assert stopped.curve == whole.curve[: last + 1]
    assert (stopped.best_epoch, stopped.validation_score) == (best + 1, scores[best])
    assert torch.equal(flat(stopped), flat(train(replace(spec, epochs=best + 1), data)))
    assert len(seen) == 30  # a bar over epochs comes to its end


def test_validation_is_scored_after_each_nth_epoch_and_after_the_last(toy: Toy) -> None:
    data = toy(learnable=False)
    spec = run_spec(data, epochs=11, lr=1e-2, init_seed=3, schedule="constant")
    whole, seldom = train(spec, data), train(replace(spec, validate_every=4), data)
    due = [4, 8, 11]
    scores = {epoch: whole.curve[epoch - 1]["validation_score"] for epoch in due}
    best = max(due, key=lambda epoch: (scores[epoch], -epoch))
    assert seldom.curve == [
        point if point["epoch"] in due else {**point, "validation_score": None} for point in whole.curve
    ]
    assert (seldom.best_epoch, seldom.validation_score) == (best, scores[best])
    assert torch.equal(flat(seldom), flat(train(replace(spec, epochs=best), data)))


def test_no_run_of_a_stack_is_scored_because_another_one_is(toy: Toy) -> None:
    data = toy(learnable=False)
    short = run_spec(data, epochs=5, lr=1e-2, init_seed=3, validate_every=4)
    longer = replace(short, epochs=7, init_seed=4)
    beside = dict(train_unit([short, longer], data, lambda _: (1,), HIDDEN, lambda _: None))
    for spec, due in ((short, [4, 5]), (longer, [4, 7])):
        outcome = beside[spec]
        assert isinstance(outcome, RunResult)
        assert [point["epoch"] for point in outcome.curve if point["validation_score"] is not None] == due
        assert outcome.best_epoch in due


def test_patience_ends_a_run_only_where_it_was_scored(toy: Toy) -> None:
    data, seen = toy(learnable=False), list[None]()
    spec = run_spec(data, epochs=40, lr=1e-2, init_seed=3, schedule="constant", validate_every=3)
    whole = [point["validation_score"] for point in train(spec, data).curve]
    stopped = train_run(replace(spec, patience=4), data, (1,), HIDDEN, lambda: seen.append(None))
    best, last = 3, 0
    for last in range(3, 40, 3):
        now, before = whole[last - 1], whole[best - 1]
        assert now is not None
        assert before is not None
        best = last if now > before else best
        if last - best >= 4:
            break
    assert last < 36
    assert (len(stopped.curve), stopped.best_epoch) == (last, best)
    assert len(seen) == 40


def test_a_run_ends_after_its_steps_whatever_epochs_says(skewed: TaskData) -> None:
    """Five steps are an epoch of these 30 examples."""
    seen = list[None]()
    spec = run_spec(skewed, epochs=3, batch_size=7, max_steps=8)
    found = train_run(spec, skewed, (1,), HIDDEN, lambda: seen.append(None))
    assert (found.steps, len(found.curve), len(seen)) == (8, 2, 2)
    assert all(point["validation_score"] is not None for point in found.curve)
    assert spec == replace(spec, epochs=50)  # the number of epochs makes no other run of it
    assert spec.digest != run_spec(skewed, batch_size=7).digest
    whole, same = (train(run_spec(skewed, batch_size=7, **by), skewed) for by in ({"epochs": 3}, {"max_steps": 15}))
    assert (whole.steps, whole.curve) == (15, same.curve)
    assert torch.equal(flat(whole), flat(same))
    assert train(run_spec(skewed, batch_size=7, max_steps=1), skewed).steps == 1


def test_runs_of_several_lengths_learn_together_what_each_would_alone(skewed: TaskData) -> None:
    """Weights, and the mean loss of the minibatches that each has had."""
    plain = run_spec(skewed, epochs=3, batch_size=7, lr=1e-2, schedule="constant", weight_decay=0.1)
    changes: list[dict[str, Any]] = [
        {"max_steps": 3}, {"max_steps": 5}, {"max_steps": 8}, {"max_steps": 8, "lr": 1e-3}, {}, {"max_steps": 17},
    ]  # fmt: skip
    specs = [replace(plain, init_seed=seed, **change) for seed, change in enumerate(changes)]
    together = dict(train_unit(specs, skewed, lambda _: (1,), HIDDEN, lambda _: None))
    for spec in specs:
        alone, found = train(spec, skewed), together[spec]
        assert isinstance(found, RunResult)
        assert (found.steps, found.best_epoch) == (alone.steps, alone.best_epoch) == (spec.max_steps or 15, ANY)
        torch.testing.assert_close(flat(found), flat(alone), rtol=0, atol=1e-5)
        losses = ([point["loss"] for point in run.curve] for run in (found, alone))
        assert next(losses) == pytest.approx(next(losses), rel=1e-4)


def test_a_record_says_how_many_steps_were_made(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store, runs = corpus_store("words"), RunsFolder(tmp_path / "runs")
    specs = expand(store, task="tagging", fusions=("last",), batch_sizes=(2,), epochs=(2,), max_steps=(None, 1, 4))
    records = fit(store, specs, runs, watch)
    each = -(-len(store["train"].examples) // 2)
    assert [(record["spec"]["max_steps"], record["steps"]) for record in records] == [(None, 2 * each), (1, 1), (4, 4)]
    frame = runs.frame().set_index("digest").loc[[spec.digest for spec in specs]]
    assert frame["steps"].tolist() == [2 * each, 1, 4]
    assert sorted(summarise(RunGroups(runs.frame()))["max_steps"].fillna(0)) == [0, 1, 4]
    assert len(fit(store, specs, runs, watch)) == len(watch.ended) == 3  # none is trained again


REFUSED = [
    ("tagging", "crf", {"label_smoothing": 0.1}, "--label-smoothing 0.1", "tagger"),
    ("tagging", "crf", {"class_weights": "balanced"}, "--class-weights balanced", "linear-tagger"),
]


@pytest.mark.parametrize(("task", "head", "option", "received", "expected"), REFUSED)
def test_what_a_head_cannot_use_is_refused_before_any_run(
    task: str, head: str, option: dict[str, Any], received: str, expected: str,
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any,
) -> None:  # fmt: skip
    store = corpus_store("words")
    with pytest.raises(UsageError, match=f"head '{head}' cannot use {received.split()[0]}") as caught:
        expand(store, task=task, head=head, fusions=("last",), **option)
    assert caught.value.received == received
    assert expected in (caught.value.expected or "")
    sound = expand(store, task=task, head=head, fusions=("last",), epochs=(1,))
    with pytest.raises(UsageError, match="cannot use"):
        fit(store, [*sound, replace(sound[0], **option)], RunsFolder(tmp_path / "runs"), watch)
    assert not (tmp_path / "runs").exists()
    assert watch.ended == []


def test_options_that_differ_are_told_apart_in_the_table(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store, runs = corpus_store("words"), RunsFolder(tmp_path / "runs")
    changes: list[dict[str, Any]] = [
        {}, {"optimizer": "adam"}, {"warmup": 0.5}, {"clip_norm": 1.0}, {"label_smoothing": 0.1},
        {"class_weights": "balanced"}, {"patience": 1}, {"schedule": "cosine"},
    ]  # fmt: skip
    specs = [expand(store, task="tagging", fusions=("last",), epochs=(1,), **change)[0] for change in changes]
    fit(store, specs, runs, watch)
    summary = summarise(RunGroups(runs.frame()))
    assert len(summary) == len(changes) == 8
    assert {name for change in changes for name in change} <= set(summary.columns)


def test_a_record_of_a_release_without_the_options_has_their_defaults(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any
) -> None:
    store, runs = corpus_store("words"), RunsFolder(tmp_path / "runs")
    spec = expand(store, task="tagging", fusions=("last",), epochs=(1,))[0]
    fit(store, [spec], runs, watch)
    path = tmp_path / "runs" / spec.digest / "run.json"
    record = json.loads(path.read_text())
    for name, entry in options_of(RunSpec).items():
        if entry.later:
            del record["spec"][name]
    path.write_text(json.dumps(record))
    again = fit(store, [spec], runs, watch)
    assert again[0]["spec"] == spec.to_dict()
    assert len(watch.ended) == 1  # not trained again


def test_a_run_in_bfloat16_learns_as_one_in_float32_and_keeps_float32_weights(toy: Toy) -> None:
    data = toy(learnable=True, gap=2.0)
    spec = run_spec(data, epochs=6, lr=1e-2, init_seed=3, label_smoothing=0.1, class_weights="balanced")
    whole, narrow = train(spec, data), train(replace(spec, compute_dtype="bfloat16"), data)
    assert {weight.dtype for weight in narrow.weights.values()} == {torch.float32}
    losses = np.array([[point["loss"] for point in outcome.curve] for outcome in (whole, narrow)])
    assert (losses[0] != losses[1]).all()
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert narrow.validation_score == pytest.approx(whole.validation_score, abs=0.05)


def test_runs_of_two_precisions_go_into_stacks_of_their_own_and_are_told_apart(
    corpus_store: Callable[..., Store], tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("words")
    specs = [
        spec
        for dtype in ("float32", "bfloat16")
        for spec in expand(store, task="tagging", fusions=("attention",), seeds=2, epochs=(2,), compute_dtype=dtype)
    ]
    records = fit(store, specs, RunsFolder(tmp_path / "all"), watch)
    alone = fit(store, specs[:2], RunsFolder(tmp_path / "alone"), watch)
    assert [record["curve"] for record in records[:2]] == [record["curve"] for record in alone]
    assert records[0]["curve"] != records[2]["curve"]
    table = summarise(RunGroups(RunsFolder(tmp_path / "all").frame()))
    assert table["compute_dtype"].tolist() == ["float32", "bfloat16"]
    assert table["runs"].tolist() == [2, 2]


def test_a_cpu_without_bfloat16_instructions_says_so_once(
    corpus_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.fit.executor.context.has_bfloat16", lambda: False)
    store, told = corpus_store("words"), list[str]()
    narrow, other = expand(store, task="tagging", fusions=("last",), seeds=2, epochs=(1,), compute_dtype="bfloat16")
    for specs in ([replace(narrow, compute_dtype="float32")], [narrow, other]):
        list(SweepContext(store).train(specs, lambda _: None, tell=told.append))
    assert told == ["this CPU has no bfloat16 instructions: --compute-dtype bfloat16 is slower here than float32"]


@pytest.mark.parametrize("chosen", [{"fusions": ("extra-layers:1",)}, {"fusions": ("last",), "head": "bilstm-crf"}])
def test_a_cpu_without_bfloat16_instructions_multiplies_in_float32(
    chosen: dict[str, Any], corpus_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.machine.bfloat16.has_bfloat16", lambda: False)
    for module in ("fit.train.decisions", "fit.vectorized.run_linear"):
        monkeypatch.setattr(f"fusionkit.{module}.has_bfloat16", lambda: False)
    store = corpus_store("words")
    specs = expand(store, task="tagging", seeds=2, epochs=(1,), compute_dtype="bfloat16", **chosen)
    with Multiplied() as watched:
        list(SweepContext(store).train(specs, lambda _: None))
    assert watched.types == {torch.float32}


def test_a_run_that_clips_nothing_is_not_touched_by_one_that_does() -> None:
    """Its own norm may be so large that the square is infinite."""
    gradients = [torch.tensor([[3e19, 4e19], [3.0, 4.0]])]
    limits = limits_of([None, 1.0], torch.device("cpu"))
    assert limits is not None
    (found,) = clipped(gradients, limits)
    assert torch.allclose(found, torch.tensor([[3e19, 4e19], [0.6, 0.8]]))


def test_one_gradient_of_two_weights_is_clipped_once() -> None:
    """Of weights that are added up autograd gives the same memory twice."""
    weights = [torch.ones(1, 2, requires_grad=True) for _ in range(2)]
    gradients = torch.autograd.grad((weights[0] + weights[1]).sum(), weights)
    assert gradients[0].data_ptr() == gradients[1].data_ptr()
    limits = limits_of([1.0], torch.device("cpu"))
    assert limits is not None
    for found in clipped(gradients, limits):
        assert torch.allclose(found, torch.full((1, 2), 0.5))


def test_each_data_seed_is_balanced_by_its_own_draw_where_all_are_trained_together(toy: Toy) -> None:
    data = toy(gap=0.0)
    plain = run_spec(data, shots=4, epochs=3, batch_size=4, lr=1e-3, validate_every=3, init_seed=8)
    specs = [replace(plain, data_seed=seed, class_weights="balanced") for seed in range(6)]
    assert len({int(training_split(spec, data).targets.sum()) for spec in specs}) > 1  # they need other weights
    together = dict(train_unit(specs, data, lambda _: (1,), HIDDEN, lambda _: None))
    for spec in specs:
        found = together[spec]
        assert isinstance(found, RunResult)
        torch.testing.assert_close(flat(found), flat(train(spec, data)), rtol=0, atol=1e-5)


def test_scores_of_a_run_in_bfloat16_are_those_of_its_weights_in_float32(toy: Toy) -> None:
    """Alone and in a stack; labels of chance leave many examples near the boundary."""
    data = toy(learnable=False)
    base = run_spec(data, epochs=4, lr=1e-2, compute_dtype="bfloat16")
    for specs in ([base], [replace(base, init_seed=seed) for seed in (0, 1)]):
        for spec, outcome in train_unit(specs, data, lambda _: (1,), HIDDEN, lambda _: None):
            assert isinstance(outcome, RunResult)
            model = build_model(replace(spec, compute_dtype="float32"), 1, HIDDEN, 2)
            model.load_state_dict(outcome.weights)
            assert data.test is not None
            for name, split in (("validation", data.validation), ("test", data.test)):
                assert score(model, data, split, (1,)) == pytest.approx(outcome.scores[name], abs=1e-12)


def test_each_run_of_a_unit_stops_by_its_own_scores_and_keeps_its_own_weights(toy: Toy) -> None:
    data, seen, lengths = toy(learnable=False), Counter[RunSpec](), set[int]()
    base = run_spec(data, epochs=30, lr=1e-2, schedule="constant")
    specs = [replace(base, init_seed=seed, patience=patience) for seed in (3, 4) for patience in (1, 3, None)]
    together = dict(train_unit(specs, data, lambda _: (1,), HIDDEN, lambda spec: seen.update([spec])))
    for spec in specs:
        outcome = together[spec]
        assert isinstance(outcome, RunResult)
        scores = [point["validation_score"] for point in outcome.curve]
        waits = [epoch - 1 - scores.index(max(scores[:epoch])) for epoch in range(1, len(scores) + 1)]
        ended = [epoch for epoch, wait in enumerate(waits, 1) if spec.patience is not None and wait >= spec.patience]
        assert len(scores) == (ended[0] if ended else 30)
        assert (outcome.best_epoch, outcome.validation_score) == (scores.index(max(scores)) + 1, max(scores))
        model = build_model(spec, 1, HIDDEN, 2)
        model.load_state_dict(outcome.weights)
        assert score(model, data, data.validation, (1,))["accuracy"] == pytest.approx(max(scores), abs=1e-12)
        lengths.add(len(scores))
    assert len(lengths) > 2
    assert seen == dict.fromkeys(specs, 30)  # a bar over epochs comes to its end


def test_training_the_encoder_without_a_rate_is_refused() -> None:
    spec = RunSpec(store="s", task="classification", label="label", fusion="last", head="classifier", method="full")
    with pytest.raises(UsageError, match="method full has no rate for the encoder"):
        check_rate(spec)
    check_rate(replace(spec, encoder_lr=1e-4))
