"""Joint intent and slots: the loss is a sum, a shared fusion hears both heads, two fusions are two single runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_joint, load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.fit.model.joint import JointModel, model_of
from fusionkit.fit.train.decisions import predict_parts
from fusionkit.fit.train.loop import train_run
from fusionkit.fit.train.result import RunResult
from fusionkit.fusions import sees_examples
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import parts_of

PLACES = (0, 3, 5)
HEADS = ("classifier+tagger", "classifier+linear-tagger", "classifier+crf")
# Kind of rows, pool, fusion.
LAYOUTS = [
    ("tokens", "cls", "attention"),
    ("tokens", "mean", "linear"),
    ("tokens", "max", "extra-layers:1"),
    ("words", "mean", "concat"),
    ("words-mean", "max", "attention"),
]
each_layout = pytest.mark.parametrize(("rows", "pool", "fusion"), LAYOUTS)


@pytest.fixture(scope="module")
def labelled(make_store: Callable[..., Store], corpus: dict[str, Any]) -> Callable[[str], Store]:
    """The corpus without the example that has no label: then single runs learn from what a joint run learns from."""
    made: dict[str, Store] = {}

    def get(rows: str) -> Store:
        if rows not in made:
            splits = {name: [row for row in found if row["label"]] for name, found in corpus.items()}
            made[rows] = make_store(rows, **splits)
        return made[rows]

    return get


def spec_of(pool: str, fusion: str, **fields: Any) -> RunSpec:
    given = {"head": "classifier+tagger", **fields}
    return RunSpec(store="s", task="joint", label="label,tags", pool=pool, fusion=fusion, init_seed=3, **given)


def joint_model(spec: RunSpec, data: TaskData) -> JointModel:
    model = model_of(spec, layers_of(spec), 384, {name: len(part.labels) for name, part in data.parts.items()})
    assert isinstance(model, JointModel)
    return model


def layers_of(spec: RunSpec) -> int:
    return 1 if spec.fusion.startswith("extra") else len(PLACES)


def singles(spec: RunSpec, store: Store) -> list[tuple[FusedModel, TaskData]]:
    """Each half as a run of its own, over the rows that such a run reads."""
    found = []
    for half in parts_of(spec).values():
        task, label = choose_task(store, half.task, half.label)
        data = load_task(store, task, label, half.pool, sees_examples(half.fusion))
        found.append((build_model(half, layers_of(spec), 384, len(data.labels)), data))
    return found


@each_layout
@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_the_sum_of_what_two_runs_have(
    rows: str, pool: str, fusion: str, head: str, labelled: Callable[[str], Store]
) -> None:
    store, spec = labelled(rows), spec_of(pool, fusion, head=head)
    data, places = load_joint(store, spec_of(pool, "last")), PLACES[-layers_of(spec) :]
    examples = np.array([4, 0, 2, 1])
    losses = []
    for model, single in singles(spec, store):
        batch = single.train.batch(examples, places)
        losses.append(model.loss(batch))
    for joint_fusion in ("shared", "each"):
        joint = joint_model(spec_of(pool, fusion, head=head, joint_fusion=joint_fusion), data)
        torch.testing.assert_close(joint.loss(data.train.batch(examples, places)), losses[0] + losses[1])


@each_layout
def test_a_shared_fusion_gets_the_gradients_of_both_heads(
    rows: str, pool: str, fusion: str, labelled: Callable[[str], Store]
) -> None:
    store, spec = labelled(rows), spec_of(pool, fusion)
    data, places = load_joint(store, spec_of(pool, "last")), PLACES[-layers_of(spec) :]
    examples = np.arange(5)
    alone = []
    for model, single in singles(spec, store):
        model.loss(single.train.batch(examples, places)).backward()  # type: ignore[no-untyped-call]
        alone.append([parameter.grad for parameter in model.fusion.parameters()])
    joint = joint_model(spec, data)
    joint.loss(data.train.batch(examples, places)).backward()  # type: ignore[no-untyped-call]
    compared = 0
    for parameter, one, other in zip(joint.fusion.parameters(), *alone, strict=True):
        assert one is not None
        assert other is not None
        assert float(one.abs().sum()) > 0
        assert float(other.abs().sum()) > 0
        torch.testing.assert_close(parameter.grad, one + other, rtol=1e-4, atol=1e-6)
        compared += 1
    assert compared >= 1


@pytest.mark.parametrize("head", HEADS)
@each_layout
def test_a_fusion_each_trains_as_two_runs_do(
    rows: str, pool: str, fusion: str, head: str, labelled: Callable[[str], Store]
) -> None:
    """Four steps of AdamW from the same start; the one epoch is the best of each."""
    store = labelled(rows)
    spec = spec_of(pool, fusion, head=head, joint_fusion="each", epochs=1, batch_size=2, lr=1e-3)
    data, places = load_joint(store, spec_of(pool, "last")), PLACES[-layers_of(spec) :]
    joint = train_run(spec, data, places, 384, lambda: None)
    seen = 0
    for (name, half), (_, single) in zip(parts_of(spec).items(), singles(spec, store), strict=True):
        alone = train_run(half, single, places, 384, lambda: None)
        for key, weight in alone.weights.items():
            part, _, rest = key.partition(".")
            torch.testing.assert_close(joint.weights[f"{part}.{name}.{rest}"], weight, rtol=1e-4, atol=2e-6)
            seen += 1
        prefix = f"{name}_"
        same = {
            key.removeprefix(prefix): value for key, value in joint.scores["test"].items() if key.startswith(prefix)
        }
        assert same == alone.scores["test"]
    assert seen == len(joint.weights)


def test_a_shared_fusion_is_computed_once(labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    for joint_fusion, wanted in (("shared", 1), ("each", 2)):
        model = joint_model(spec_of("mean", "attention", joint_fusion=joint_fusion), data)
        calls: list[int] = []
        for fusion in {id(part.fusion): part.fusion for part in model.parts.values()}.values():
            assert isinstance(fusion, torch.nn.Module)
            fusion.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model.decide(data.train.batch(np.arange(3), PLACES))
        assert len(calls) == wanted


def test_no_weight_has_two_names_and_all_are_learned(labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    shared = joint_model(spec_of("mean", "attention"), data)
    each = joint_model(spec_of("mean", "attention", joint_fusion="each"), data)
    fusions = [[name for name in model.state_dict() if name.startswith("fusion.")] for model in (shared, each)]
    assert fusions == [["fusion.query"], ["fusion.intent.query", "fusion.slots.query"]]
    for model in (shared, each):
        state = model.state_dict()
        assert len({value.data_ptr() for value in state.values()}) == len(state) == len(list(model.parameters()))
        used = {id(p) for part in model.parts.values() for p in part.parameters()}
        assert used == {id(p) for p in model.parameters()}


def run(spec: RunSpec, data: TaskData) -> RunResult:
    return train_run(spec, data, PLACES, 384, lambda: None)


@pytest.mark.parametrize("joint_fusion", ["shared", "each"])
def test_a_joint_run_learns_and_records_both(joint_fusion: str, labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    spec = spec_of("mean", "attention", joint_fusion=joint_fusion, epochs=30, batch_size=4)
    outcome = run(spec, data)
    assert outcome.curve[-1]["loss"] < 0.2 < outcome.curve[0]["loss"]
    model = joint_model(spec, data)
    model.load_state_dict(outcome.weights)
    answers = predict_parts(model, data, data.train, PLACES)
    right = [label == gold for label, gold in zip(answers["intent"], data.train.gold, strict=True)]
    assert sum(right) >= 6
    assert [len(tags) for tags in answers["slots"]] == [len(tags) for tags in data.train.others["slots"].gold]
    assert outcome.metric == "mean"
    assert outcome.validation_score == max(point["validation_score"] for point in outcome.curve)
    assert outcome.fusion_parameters == (384 if joint_fusion == "shared" else 768)
    assert outcome.layer_weights is not None
    for weights in (outcome.layer_weights, outcome.others["slots"]["layer_weights"]):
        assert len(weights) == len(PLACES)
        assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert outcome.layer_weights != outcome.others["slots"]["layer_weights"]


@pytest.mark.parametrize("fusion", ["attention", "concat-affine"])
def test_a_joint_run_in_bfloat16_learns_as_one_in_float32(fusion: str, labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    spec = spec_of("mean", fusion, epochs=4, batch_size=4)
    whole, narrow = run(spec, data), run(dataclasses.replace(spec, compute_dtype="bfloat16"), data)
    losses = [[point["loss"] for point in outcome.curve] for outcome in (whole, narrow)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert whole.weights.keys() == narrow.weights.keys()


def test_a_shot_is_an_example_of_an_intent(labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    assert data.labels == ["food", "weather"]
    outcome = run(spec_of("mean", "last", shots=2, epochs=1, fusion_layers=None), data)
    assert outcome.draw is not None
    assert len(outcome.draw) == 2 * 2


def test_options_of_training_reach_both_heads(labelled: Callable[[str], Store]) -> None:
    data = load_joint(labelled("tokens"), spec_of("mean", "last"))
    plain = run(spec_of("mean", "linear", epochs=1, batch_size=8), data)
    smoothed = run(spec_of("mean", "linear", epochs=1, batch_size=8, label_smoothing=0.3), data)
    weighed = run(spec_of("mean", "linear", epochs=1, batch_size=8, class_weights="balanced"), data)
    for other in (smoothed, weighed):
        for name in ("head.intent.score.6.bias", "head.slots.score.6.bias"):
            assert not torch.equal(plain.weights[name], other.weights[name])
