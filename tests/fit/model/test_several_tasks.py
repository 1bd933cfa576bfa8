"""Runs of several tasks: three columns and more, by their names, in every place where a run of one task goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fusionkit
from fusionkit.dataset.infer_task import choose_tasks
from fusionkit.dataset.labels import load_joint, load_task
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.errors import UsageError
from fusionkit.exported import export_run
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.joint import JointModel, model_of
from fusionkit.fit.model.warm_start import open_starts
from fusionkit.fit.sweep.file import read_sweep
from fusionkit.fit.train.loop import train_run
from fusionkit.predict import Label, Labels, Number, Tags
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS, parts_of, tasks_of

THREE = {"topic": "classification", "marks": "tagging", "type": "classification"}
PLACES = tuple(range(7))
WORDS = {"rain": "weather", "soup": "food", "Oslo": "place"}


def rows_of(words: str) -> list[dict[str, Any]]:
    return [
        {
            "tokens": (some := text.split()),
            "marks": [f"B-{WORDS[word]}" if word in WORDS else "O" for word in some],
            "category": "wet" if "rain" in some else "dry",
            "type": "long" if len(some) > 2 else "short",
            "kinds": [WORDS[word] for word in some if word in WORDS],
            "size": len(some) / 4,
        }
        for text in words.split(",")
    ]


TEXTS = "rain in Oslo,soup,the soup of Oslo,rain,a big rain,soup in rain,Oslo,nothing at all"


@pytest.fixture(scope="module")
def columns(make_store: Callable[..., Store]) -> Store:
    return make_store("tokens", train=rows_of(TEXTS), validation=rows_of(TEXTS), test=rows_of("Oslo in rain,a soup,of"))


@pytest.fixture(scope="module")
def others(make_store: Callable[..., Store]) -> Store:
    return make_store(
        "tokens", "more", train=rows_of("soup of the,rain in a big town,Oslo"), validation=rows_of("of rain,of Oslo")
    )


def specs_of(store: Any, **fields: Any) -> list[RunSpec]:
    given: Any = {"task": THREE, "label": {"topic": "category"}, "head": {"marks": "crf"}, "fusions": ["linear"],
                  "pool": "mean", "epochs": [2], "batch_sizes": [4], **fields}  # fmt: skip
    return expand(store, **given)


def test_a_run_has_its_tasks_by_name(columns: Store) -> None:
    [spec] = specs_of(columns)
    assert spec.task == "topic=classification,marks=tagging,type=classification"
    assert (spec.label, spec.head) == ("category,marks,type", "classifier+crf+classifier")
    parts = parts_of(spec)
    assert {name: (part.task, part.label, part.head, part.pool) for name, part in parts.items()} == {
        "topic": ("classification", "category", "classifier", "mean"),
        "marks": ("tagging", "marks", "crf", None),
        "type": ("classification", "type", "classifier", "mean"),
    }
    text = "topic=classification,marks=tagging,type=classification"
    assert specs_of(columns, task=text, label="category,marks,type", head="classifier+crf+classifier") == [spec]
    assert specs_of(columns, task=text, label="topic=category", head="marks=crf") == [spec]
    assert RunSpec.from_dict(spec.to_dict()).digest == spec.digest


def test_an_intent_and_its_slots_are_joint_and_one_task_is_itself(corpus_store: Callable[[str], Store]) -> None:
    store, same = corpus_store("tokens"), {"fusions": ["last"]}
    named = expand(store, task={"intent": "classification", "slots": "tagging"},
                   label={"intent": "label", "slots": "tags"}, **same)  # type: ignore[arg-type]  # fmt: skip
    assert named == expand(store, task="joint", **same)  # type: ignore[arg-type]
    one = expand(store, task={"topic": "classification"}, label={"topic": "label"}, **same)  # type: ignore[arg-type]
    assert one == expand(store, task="classification", label="label", **same)  # type: ignore[arg-type]
    headed = expand(store, task="topic=classification", label="topic=label", head="topic=classifier", **same)  # type: ignore[arg-type]
    assert headed == one


def test_a_column_given_twice_to_one_task_is_refused(corpus_store: Callable[[str], Store]) -> None:
    for task in ("topic=classification", THREE):
        with pytest.raises(UsageError, match="--label does not name the columns of topic"):
            expand(corpus_store("tokens"), task=task, label="topic=label,topic=tags", fusions=["last"])


@pytest.mark.parametrize("joint_fusion", ["shared", "each"])
def test_three_columns_learn_what_three_runs_learn(joint_fusion: str, columns: Store, tmp_path: Path) -> None:
    [spec] = specs_of(columns, joint_fusion=joint_fusion, epochs=[1])
    data = load_joint(columns, spec)
    joint = train_run(spec, data, PLACES, 384, lambda: None)
    names = {name for name in joint.weights if name.startswith("fusion.")}
    assert any(name.startswith("fusion.type.") for name in names) == (joint_fusion == "each")
    assert list(joint.others) == ["marks", "type"]
    assert {name.partition("_")[0] for name in joint.scores["test"]} == {"mean", "frame", *THREE}
    own = [joint.scores["test"][f"{name}_{'f1' if name == 'marks' else 'accuracy'}"] for name in THREE]
    assert joint.scores["test"]["mean"] == pytest.approx(sum(own) / 3)
    if joint_fusion == "shared":
        return
    for name, part in parts_of(spec).items():
        own_data = load_task(columns, TASKS[part.task], part.label, part.pool, whole=True)
        alone = train_run(part, own_data, PLACES, 384, lambda: None)
        for key, weight in alone.weights.items():
            module, _, rest = key.partition(".")
            torch.testing.assert_close(joint.weights[f"{module}.{name}.{rest}"], weight, rtol=1e-4, atol=2e-6)


def test_a_column_with_a_comma_is_refused_for_several_tasks(columns: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"a": (TASKS["classification"], "topic, main"), "b": (TASKS["tagging"], "marks")}
    monkeypatch.setattr("fusionkit.fit.sweep.grid.choose_tasks_of", lambda *_: found)
    with pytest.raises(UsageError, match="the column 'topic, main' has a comma"):
        specs_of(columns, task=THREE)


def test_all_kinds_together_are_predicted_exported_and_told(columns: Store, tmp_path: Path, watch: Any) -> None:
    kinds = {**THREE, "kinds": "multi-label", "size": "regression"}
    [spec] = specs_of(columns, task=kinds, epochs=[8])
    fit(columns, [spec], RunsFolder(tmp_path / "runs"), watch)
    texts = [list(words) for words in columns["test"].examples["tokens"]]
    export_run(tmp_path / "runs" / spec.digest, tmp_path / "head")
    found = [fusionkit.load(tmp_path / place, device="cpu").predict(texts) for place in ("runs", "head")]
    assert [prediction.to_dict() for prediction in found[0]] == [prediction.to_dict() for prediction in found[1]]
    answers = found[0][0].heads
    assert {name: type(answer) for name, answer in answers.items()} == {
        "category": Label, "marks": Tags, "type": Label, "kinds": Labels, "size": Number,
    }  # fmt: skip
    record = RunsFolder(tmp_path / "runs").record(spec)
    assert record is not None
    assert record["others"]["kinds"]["threshold"] == answers["kinds"].threshold  # type: ignore[union-attr]
    assert "frame" not in record["scores"]["test"]  # a number is hardly ever right
    card = (tmp_path / "head" / "README.md").read_text(encoding="utf-8")
    assert "kinds: Each whose probability is above" in card
    assert "category: One of: dry, wet." in card
    [row] = fusionkit.results(tmp_path / "runs", metric="kinds_micro_f1").to_dict(orient="records")
    assert row["score"] == record["scores"]["test"]["kinds_micro_f1"]
    own = {
        name: row[name] for name in ("topic_accuracy", "marks_f1", "type_accuracy", "kinds_micro_f1", "size_pearson")
    }
    assert own == {name: record["scores"]["test"][name] for name in own}
    told = fusionkit.layer_weights(tmp_path / "runs")
    assert set(told["label"]) == {"category", "marks", "type", "kinds", "size"}


def test_a_frozen_fusion_and_a_start_from_the_same_tasks(columns: Store, tmp_path: Path, watch: Any) -> None:
    first = specs_of(columns, fusions=["attention"])
    fit(columns, first, RunsFolder(tmp_path), watch)
    starts = open_starts([tmp_path])
    [spec] = specs_of(columns, fusions=["attention"], starts=starts, freeze="both")
    assert spec.init_from == first[0].digest
    fit(columns, [spec], RunsFolder(tmp_path / "second"), watch, starts)
    one, other = (
        load_file(tmp_path / place / "weights.safetensors") for place in (spec.init_from, f"second/{spec.digest}")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    [single] = expand(columns, task="classification", label="type", fusions=["attention"], pool="mean", starts=starts,
                      init_part="fusion", freeze="fusion", epochs=[1])  # fmt: skip
    fit(columns, [single], RunsFolder(tmp_path / "third"), watch, starts)
    own = load_file(tmp_path / "third" / single.digest / "weights.safetensors")
    assert torch.equal(own["fusion.query"], one["fusion.query"])
    with pytest.raises(UsageError, match="what differs: head"):
        specs_of(columns, fusions=["attention"], head=None, starts=starts, init_part="head")


def test_stores_are_mixed_and_draws_count_the_first_tasks_classes(
    columns: Store, others: Store, tmp_path: Path, watch: Any
) -> None:
    mix = Mix([Share(columns), Share(others, "2")], [columns])
    [spec] = specs_of(mix, label={"topic": "category"})
    data = mix.load(spec)
    assert len(data.train) == len(data.train.others["type"]) == 8 + 2
    assert data.train.ids == data.train.others["marks"].ids
    assert (data.classes, data.others["marks"].classes) == (2, 3)
    runs = RunsFolder(tmp_path)
    only = Mix([Share(columns), Share(others)], [columns])
    [drawn] = specs_of(only, shots=(2,), draw="stratified")
    fit(only, [drawn], runs, watch)
    record = runs.record(drawn)
    assert record is not None
    assert len(record["draw"]) == 2 * 2
    assert record["scores"]["test"].keys() >= {"topic_accuracy", "marks_f1", "type_accuracy"}


def test_a_sweep_file_has_a_block_of_tasks(columns: Store, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("store: s\ntask: {topic: classification, marks: tagging, type: classification}\n"
                    "label: {topic: category}\nhead: {marks: crf}\nfusion: linear\npool: mean\nepochs: 2\n"
                    "batch-size: 4\n", encoding="utf-8")  # fmt: skip
    [block] = read_sweep(path).blocks
    assert expand(columns, **block) == specs_of(columns)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"task": {"a.b": "classification", "marks": "tagging"}}, "each task of a run has a name of its own"),
    ({"task": "topic=classification,tagging"}, "each task of a run has a name of its own"),
    ({"task": {"topic": "mlm", "marks": "tagging"}}, "unknown task beside others 'mlm'"),
    ({"head": {"mark": "crf"}}, "unknown task of this run 'mark'"),
    ({"head": {"marks": "classifier"}}, "unknown head for marks 'classifier'"),
    ({"head": {"topic": "bcn"}}, "unknown head for topic 'bcn'"),
    ({"label": {"topic": "type"}}, "several tasks of one run learn the column 'type'"),
    ({"label": "category,marks"}, "--label does not name the columns of topic, marks, type"),
    ({"label": {"topik": "category"}}, "--label does not name the columns of topic, marks, type"),
    ({"label": None}, "unknown column 'topic'"),
    ({"compute_dtype": "bfloat16", "task": {**THREE, "size": "regression"}}, "cannot use --compute-dtype bfloat16"),
]


@pytest.mark.parametrize(("given", "what"), REFUSED)
def test_a_mistake_is_one_error(given: dict[str, Any], what: str, columns: Store) -> None:
    with pytest.raises(UsageError) as caught:
        specs_of(columns, **given)
    assert what in caught.value.what


def test_names_that_pytorch_has_itself_serve(columns: Store) -> None:
    [spec] = specs_of(columns)
    model = model_of(spec, 7, 384, {"topic": 2, "marks": 4, "type": 2})
    assert isinstance(model, JointModel)
    assert "head.type.score.0.weight" in model.state_dict()
    model.load_state_dict(model.state_dict())
    assert choose_tasks(columns, spec.task, spec.label).keys() == tasks_of(spec.task).keys()
    assert dataclasses.replace(spec, joint_fusion="each").digest != spec.digest
