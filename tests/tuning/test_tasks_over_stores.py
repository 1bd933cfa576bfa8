"""One run over several stores: the order of its steps, and what each task learns in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fusionkit
from fusionkit.dataset.share import Share
from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.errors import UsageError
from fusionkit.exported import export_run
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.context import SweepContext, open_context, opening_of
from fusionkit.fit.executor.estimate import Measurements, forecast
from fusionkit.fit.progress import FitProgress
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.fit.sweep.fixed_draws import open_draws
from fusionkit.fit.sweep.multi import named_tasks, opened
from fusionkit.fit.train.schedule import Length
from fusionkit.predict import load
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_planned
from fusionkit.tuning.best_epochs import model_of_task
from fusionkit.tuning.task_sampler import TaskSampler, task_probabilities
from fusionkit.tuning.trained import delta_bytes
from tests.tuning.conftest import encoded

SIZES = (400, 100, 25)
EXACT: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "weight_decay": 0.0}
OWN = ("houlsby:4", "bitfit", "prefix:2", "prompt:2")


@pytest.mark.parametrize(
    ("sampling", "epoch", "alpha"),
    [
        ("proportional", 2, 1.0), ("square-root", 2, 0.5), ("uniform", 2, 0.0), ("temperature:4", 2, 0.25),
        ("annealed", 1, 1.0), ("annealed", 2, 0.6), ("annealed", 3, 0.2),
    ],
)  # fmt: skip
def test_tasks_are_drawn_by_their_sizes_to_the_power_of_alpha(sampling: str, epoch: int, alpha: float) -> None:
    weights = np.array(SIZES) ** alpha
    likely = task_probabilities(sampling, SIZES, epoch, 3)
    np.testing.assert_allclose(likely, weights / weights.sum())
    counts = np.array([each[epoch - 1] for each in TaskSampler(sampling, SIZES, Length(6000, 18000, 3), 5).counts(3)])
    assert counts.sum() == 6000
    # Pearson's statistic; 99.9 % of draws of this distribution have less than 13.8.
    assert float(((counts - 6000 * likely) ** 2 / (6000 * likely)).sum()) < 13.8


def test_the_order_of_tasks_is_that_of_the_seed_and_each_tasks_minibatches_follow_one_another() -> None:
    orders = [
        [TaskSampler("annealed", SIZES, Length(20, 70, 4), seed).minibatch(step) for step in range(70)]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    for task in range(3):
        mine = [number for which, number in orders[0] if which == task]
        assert mine == list(range(len(mine)))
    turns = TaskSampler("round-robin", SIZES, Length(4, 8, 2), 0)
    assert [turns.minibatch(step)[0] for step in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert turns.counts(2) == [[2, 1], [1, 2], [1, 1]]
    assert (
        task_probabilities("annealed", SIZES, 1, 1).tolist() == task_probabilities("proportional", SIZES, 1, 1).tolist()
    )


def run_of(stores: TaskStores, **choices: Any) -> RunSpec:
    (spec,) = expand(stores, **{"fusions": ["last"], "epochs": (2,), "batch_sizes": (8,), "pool": "cls", **choices})
    return spec


def trained(stores: TaskStores | Store, spec: RunSpec, out: Path) -> dict[str, Any]:
    (record,) = fit(stores, [spec], RunsFolder(out))
    assert record["status"] == "finished", record
    return {**record, "folder": out / spec.digest}


@pytest.mark.parametrize(
    "method", ["frozen", "houlsby:4", *(pytest.param(each, marks=pytest.mark.soak("products")) for each in OWN[1:])]
)
def test_tasks_that_share_nothing_learn_what_runs_of_their_own_learn(
    stores: TaskStores, method: str, tmp_path: Path
) -> None:
    of_methods: dict[str, Any] = {} if method == "frozen" else {"encoder_lrs": (1e-2,), "encoder_dropout": 0.0}
    choices: dict[str, Any] = {"methods": [method], "lrs": (1e-2,), "validate_every": 99, **EXACT, **of_methods}
    turns: dict[str, Any] = {"sampling": "round-robin", "steps_per_epoch": 20, "epochs": (1,), "joint_fusion": "each"}
    found = trained(stores, run_of(stores, **turns, **choices), tmp_path / "both")
    assert found["sampled"] == {"tags": [10], "kind": [10]}
    names = ["weights"] if method == "frozen" else ["weights", "delta"]
    both = {name: load_file(found["folder"] / f"{name}.safetensors") for name in names}
    for name, (task, column) in stores.tasks.items():
        own: dict[str, Any] = {"pool": "cls", "batch_sizes": (4,)} if name == "kind" else {"batch_sizes": (8,)}
        own |= {"head": stores.heads.split("+")[name == "kind"], "max_steps": (10,), "fusions": ["last"]}
        (alone,) = expand(stores.store_of[name], task=task.name, label=column, **own, **choices)
        record = trained(stores.store_of[name], alone, tmp_path / name)
        assert record["best_epoch"] == len(record["curve"])  # the last one alone was scored
        kept = {each: load_file(record["folder"] / f"{each}.safetensors") for each in names}
        ours = {key: value for key, value in both["weights"].items() if key.startswith(f"head.{name}.")}
        theirs = {key.replace("head.", f"head.{name}.", 1): value for key, value in kept["weights"].items()}
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        if method != "frozen":
            ours = {key: value for key, value in both["delta"].items() if key.endswith(f"@{name}")}
            theirs = {f"{key}@{name}": value for key, value in kept["delta"].items()}
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class KilledError(Exception):
    """The end of a process, as far as a run can tell."""


def test_a_run_that_is_cut_off_goes_on_to_the_same_bytes_and_predicts_every_task(
    stores: TaskStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_of(stores, methods=["pals:6,heads=2"], encoder_lrs=(1e-3,), sampling="annealed", dropout=0.1)
    whole = trained(stores, spec, tmp_path / "whole")

    class Impatient(FitProgress):
        def step(self, work: float, text: str) -> None:
            if "step 7 " in text:
                raise KilledError(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusionkit.tuning.trainer.TELL_SECONDS", 0)
        with pytest.raises(KilledError, match=r"step 7 of 16, loss \d\S*, \d+:\d\d left of this run$"):
            fit(stores, [spec], RunsFolder(tmp_path / "cut"), Impatient(), save_every="2")
    assert (tmp_path / "cut" / spec.digest / "state.safetensors").is_file()
    cut = trained(stores, spec, tmp_path / "cut")
    for name in ("weights", "delta", "answers"):
        one, other = (record["folder"] / f"{name}.safetensors" for record in (whole, cut))
        assert one.read_bytes() == other.read_bytes(), name
    assert whole["sampled"] == cut["sampled"]
    assert sum(map(sum, whole["sampled"].values())) == whole["steps"] == 2 * -(-(40 + 19) // 8)
    # 2 d h + h + d of the maps, and attention of 3 h² + 3 h in each of three layers.
    assert whole["parameters_per_task"] == 2 * 16 * 6 + 6 + 16 + 3 * (3 * 6 * 6 + 3 * 6)

    rows = RunsFolder(tmp_path / "cut").rows(each_test=True)
    assert [(row["task"], row["metric"]) for row in rows] == [
        ("tags", "tags_f1"), ("kind", "kind_accuracy"), ("mean", "mean")
    ]  # fmt: skip
    assert rows[2]["score"] == pytest.approx((rows[0]["score"] + rows[1]["score"]) / 2)
    assert rows[0]["encoder_multiple"] == pytest.approx(
        1 + 2 * whole["parameters_per_task"] / whole["encoder_parameters"]
    )
    read = Mock(wraps=delta_bytes)
    monkeypatch.setattr("fusionkit.tuning.trained.delta_bytes", read)
    words = load(cut["folder"], device="cpu")
    assert (words.takes, list(words.runs), len(words.passes)) == ("words", ["tags", "kind"], 2)
    assert read.call_count == 1  # the file has the weights of all tasks
    frame = stores.store_of["tags"]["test"].examples
    answers = words.predict([list(each) for each in frame["tokens"]])
    found = [tag for answer in answers for tag in answer.to_dict()["heads"]["tags"]["tags"]]
    assert np.mean([one == other for one, other in zip(found, np.concatenate(frame["tags"]), strict=True)]) == (
        pytest.approx(whole["scores"]["test"]["tags_word_accuracy"])
    )
    texts, kinds = (stores.store_of["kind"]["test"].examples[column].tolist() for column in ("text", "kind"))
    told = load(cut["folder"], device="cpu", takes="texts")
    assert told.left_out == ["tags"]
    right = [
        one.to_dict()["heads"]["kind"]["label"] == kind for one, kind in zip(told.predict(texts), kinds, strict=True)
    ]
    assert np.mean(right) == pytest.approx(whole["scores"]["test"]["kind_accuracy"])


class Reported(FitProgress):
    """Adds up the epochs and the work that are reported, until the process ends at a step."""

    def __init__(self, last: str = "never") -> None:
        self._last, self.told, self.whole, self.before = last, (0, 0.0), (0, 0.0), 0.0

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        self.whole = epochs, sum(work.values())

    def epoch(self, work: float) -> None:
        self.told = self.told[0] + 1, self.told[1] + work

    def step(self, work: float, text: str) -> None:
        if self._last in text:
            raise KilledError
        self.told = self.told[0], self.told[1] + work

    def resumed(self, work: float) -> None:
        self.before += work


ENDS: dict[str, dict[str, Any]] = {
    "resumed": {},
    "diverged": {},
    "stopped early": {"epochs": (5,), "patience": 1, "lrs": (1e-9,)},
    "within an epoch": {"max_steps": (12,)},
    "untrained": {"freeze": "head", "max_steps": (4,)},
}


@pytest.mark.parametrize("how", ENDS)
def test_all_of_a_run_is_reported_however_it_ends(
    stores: TaskStores, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, runs, found = run_of(stores, **ENDS[how]), RunsFolder(tmp_path), Reported()
    if how == "resumed":
        monkeypatch.setattr("fusionkit.tuning.trainer.TELL_SECONDS", 0)
        with pytest.raises(KilledError):
            fit(stores, [spec], runs, Reported("step 12 of 16"), save_every="2")
    if how == "diverged":
        monkeypatch.setattr("fusionkit.tuning.trainer.TunedRun.step", lambda run, number: (float("nan"), 8))
    (record,) = fit(stores, [spec], runs, found)
    assert record["status"] == ("failed" if how == "diverged" else "finished")
    assert how != "stopped early" or len(record["curve"]) == 2
    assert (found.told[0], found.told[1] + found.before) == pytest.approx(found.whole)
    assert found.told[0] > 0
    assert found.before == (pytest.approx(found.whole[1] * 10 / 16) if how == "resumed" else 0)


def test_a_forecast_counts_the_steps_that_an_epoch_is_given_and_trains_none_of_them(
    stores: TaskStores, tmp_path: Path
) -> None:
    known, seconds = Measurements(), list[float]()
    for steps in (1_000_000, 3_000_000):
        spec = run_of(stores, methods=["full"], steps_per_epoch=steps)
        found, _ = forecast(stores, [spec], RunsFolder(tmp_path), known=known)
        seconds.append(found.seconds)
    assert seconds[1] / seconds[0] == pytest.approx(3, rel=1e-3)


def test_each_task_may_keep_its_own_best_epoch(stores: TaskStores, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"methods": ["full"], "encoder_lrs": (3e-3,), "fusions": ["linear"], "epochs": (4,)}
    runs = {how: trained(stores, run_of(stores, choose_epoch=how, **choices), tmp_path) for how in ("mean", "each")}
    short = trained(stores, run_of(stores, choose_epoch="each", **{**choices, "epochs": (1,)}), tmp_path)
    assert short["best_epochs"] == {"tags": 1, "kind": 1}  # one encoder for both, kept twice
    epochs, scores = runs["each"]["best_epochs"], {how: run["scores"]["validation"] for how, run in runs.items()}
    assert len(set(epochs.values())) == 2, "both tasks were best in one epoch: nothing is tried"
    assert runs["each"]["curve"] == runs["mean"]["curve"]
    for name in ("tags_f1", "kind_accuracy"):
        assert scores["each"][name] >= scores["mean"][name]
    assert scores["each"]["mean"] == pytest.approx((scores["each"]["tags_f1"] + scores["each"]["kind_accuracy"]) / 2)
    texts, kinds = (stores.store_of["kind"]["test"].examples[column].tolist() for column in ("text", "kind"))
    told = load(runs["each"]["folder"], device="cpu", takes="texts").predict(texts)
    right = [one.to_dict()["heads"]["kind"]["label"] == kind for one, kind in zip(told, kinds, strict=True)]
    assert np.mean(right) == pytest.approx(runs["each"]["scores"]["test"]["kind_accuracy"])


def test_a_task_may_be_named_like_a_weight_of_the_shared_fusion() -> None:
    names = ("fusion.query", "head.query.score.1.weight", "head.kind.score.1.weight")
    weights = {name: torch.zeros(1) for name in names}
    found = {task: {*model_of_task(weights, task, shared=True)} for task in ("query", "kind")}
    assert found["query"] == {"fusion.query.query", "head.query.score.1.weight"}
    assert found["kind"] == {"fusion.kind.query", "head.kind.score.1.weight"}


def test_tasks_that_share_all_but_heads_need_one_pass(stores: TaskStores, tmp_path: Path) -> None:
    spec = run_of(stores, methods=["top:1"], max_steps=(2,), shots=[1], sampling="uniform")
    record = trained(stores, spec, tmp_path)
    assert len(load(record["folder"], device="cpu").passes) == 1
    assert (record["parameters_per_task"], len(record["others"]["kind"]["draw"])) == (0, 2)
    drawn = open_draws(record["folder"])  # each task's own, for a run of that task alone
    own = [record["draw"], record["others"]["kind"]["draw"]]
    assert [list(draw.ids) for draw in drawn] == own
    assert [draw.run.label for draw in drawn if draw.run] == ["tags", "kind"]
    opening = opening_of(SweepContext(stores))
    assert opening is not None
    again = open_context(json.loads(json.dumps(opening)))
    assert isinstance(again.store, TaskStores)
    assert [spec] == [run_of(again.store, methods=["top:1"], max_steps=(2,), shots=[1], sampling="uniform")]


def test_stores_of_different_lengths_are_told_before_training(
    stores: TaskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stores.store_of["kind"].manifest["identity"], "max_length", 7)
    notes = stores.load(run_of(stores, methods=["top:1"], max_steps=(2,))).notes
    assert notes[-1] == "stores with --max-length 32 and 7: `predict` takes no such run"
    monkeypatch.setitem(stores.store_of["kind"].manifest["columns"], "pair", "second")  # no pass serves both then
    assert not [
        note for note in stores.load(run_of(stores, methods=["top:1"], max_steps=(2,))).notes if "predict" in note
    ]


def test_a_run_with_nothing_to_train_is_scored(stores: TaskStores, tmp_path: Path) -> None:
    record = trained(stores, run_of(stores, freeze="head", fusions=["last"], max_steps=(4,)), tmp_path)
    assert (record["trained_parameters"], record["best_epoch"]) == (0, 0)
    places = [Path(str(stores.store_of[name].path)) for name in ("kind", "tags")]
    [found] = fusionkit.evaluate(record["folder"], data=places)
    assert found.scores == pytest.approx(record["scores"]["test"], abs=1e-6)


def test_a_whole_encoder_serves_all_tasks_of_its_export(stores: TaskStores, tmp_path: Path) -> None:
    record = trained(stores, run_of(stores, methods=["full"], max_steps=(4,)), tmp_path / "runs")
    export_run(record["folder"], tmp_path / "head", with_encoder=True)
    card = (tmp_path / "head" / "README.md").read_text()
    assert card.count("| columns of ") == 2
    assert "loads the tasks that read" in card
    test = stores.store_of["kind"]["test"].examples
    kinds, texts = test["kind"].tolist(), test["text"].tolist()
    told = load(tmp_path / "head", device="cpu", takes="texts").predict(texts)
    right = [one.to_dict()["heads"]["kind"]["label"] == kind for one, kind in zip(told, kinds, strict=True)]
    assert np.mean(right) == pytest.approx(record["scores"]["test"]["kind_accuracy"])


def test_what_cannot_be_one_run_is_refused_before_any_step(
    stores: TaskStores, weather: Store, model_folder: Path, source_folder: Path, tmp_path: Path
) -> None:
    def refused(match: str, *choices: TaskChoice) -> None:
        with pytest.raises(UsageError, match=match):
            TaskStores(choices)

    one = TaskChoice("kind", weather)
    refused("two tasks have the name 'kind'", one, one)
    refused("--task multi needs two tasks or more", one)
    for name in ("a=b", "mean"):  # results have a row of this name
        refused(f"'{name}' cannot name a task", one, TaskChoice(name, weather))
    refused("several tasks learn the column 'kind'", one, TaskChoice("again", weather))
    refused("task more, .*: unknown column 'kin'", one, TaskChoice("more", weather, label="kin"))
    other = encoded(model_folder, source_folder, tmp_path / "other.store", planned=True, untrained=1)
    refused("these fields differ:\n.*\n    encoder", one, TaskChoice("other", open_planned(other), label="tags"))
    (tmp_path / "linked").symlink_to(model_folder)  # one encoder with two names is one encoder
    alike = open_planned(encoded(tmp_path / "linked", source_folder, tmp_path / "alike.store", planned=True))
    assert TaskStores([one, TaskChoice("other", alike, label="tags", head="linear-tagger")])
    (lone := tmp_path / "lone").mkdir()
    (lone / "train.jsonl").write_text('{"text": "rain", "kind": "rain"}\n{"text": "snow", "kind": null}')
    tiny = open_planned(encoded(model_folder, lone, tmp_path / "lone.store", planned=True, words=False))
    few = TaskStores([one, TaskChoice("lone", tiny, task="classification", label="kind")])
    with pytest.raises(UsageError, match=r"task lone: .*fewer than two classes"):
        SweepContext(few).data(run_of(few, methods=["full"]))
    with pytest.raises(UsageError, match="--sampling applies only to several tasks"):
        expand(weather, fusions=["last"], sampling="uniform")
    with pytest.raises(UsageError, match="several tasks over stores of their own cannot have --method diff-prune"):
        run_of(stores, methods=["diff-prune"])
    sweep = expand_blocks(stores, [{"methods": ("pals:6", "houlsby:4"), "freeze": ("encoder",), "fusions": ("last",)}])
    assert [spec.method for spec in sweep.specs] == ["pals:6,encoder=frozen", "houlsby:4"]
    for method in ("full", "bitfit", "houlsby:4,norms=yes"):
        with pytest.raises(UsageError, match=f"--freeze encoder does not go with {method}: it trains the encoder's"):
            expand_blocks(stores, [{"methods": (method,), "freeze": ("encoder",), "fusions": ("last",)}])
    with pytest.raises(UsageError, match="T above 0"):
        run_of(stores, sampling="temperature:0")


def test_tasks_are_named_by_their_stores_and_columns(store: Store, weather: Store) -> None:
    shares = [Share(store), Share(weather)]
    found = named_tasks(shares, "multi,weather=classification", "towns=label,towns=tags", "towns-tags=crf")
    assert [(each.name, each.task, each.label, each.head) for each in found] == [
        ("towns-label", None, "label", None),
        ("towns-tags", None, "tags", "crf"),
        ("weather", "classification", None, None),
    ]
    with pytest.raises(UsageError, match="unknown task 'snow'"):
        named_tasks(shares, "multi", "snow=kind")
    with pytest.raises(UsageError, match="--label of several tasks says which of them"):
        named_tasks(shares, "multi", "kind")
    with pytest.raises(UsageError, match="--head names 'towns-tags' twice"):
        named_tasks(shares, "multi", "towns=label,towns=tags", "towns-tags=crf,towns-tags=tagger")
    with pytest.raises(UsageError, match="two tasks have the name 'towns'"):
        TaskStores(named_tasks([shares[0], shares[0]]))
    with pytest.raises(UsageError, match="all runs of a sweep learn the same tasks"):
        opened(shares, [], [{"task": "multi"}, {}])
