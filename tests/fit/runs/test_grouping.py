"""One rule for every table: a mean is over seeds and draws, of scores on one split; whatever else varies is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fusionkit
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder
from fusionkit.options.comparison import Comparison
from fusionkit.report.display_names import named
from fusionkit.report.figures.weights import by_language
from fusionkit.report.report_data import CELL, ReportData, read_report_data
from fusionkit.runs.errors_of_means import half_over_seeds
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.record import flat_record, flat_tests
from fusionkit.runs.summary import AXES, SEEDS, RunGroups, summarise
from fusionkit.runs.tabulate import tabulate
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import CLASS, KeptAnswers, RunAnswers
from fusionkit.study.report_steps import frame_of

OTHER_VALUES: dict[str, Any] = {
    "store": "other", "mix": "s,o:5%", "evaluate_on": "other", "task": "classification", "label": "intent",
    "method": "bitfit", "encoder_lr": 1e-4, "fusion": "linear", "fusion_layers": "0,3", "head": "crf", "pool": "max",
    "shots": 8, "draw": "nested", "draw_ids": "0123456789abcdef", "lr": 1e-6, "epochs": 3, "max_steps": 7,
    "batch_size": 8, "optimizer": "adam", "schedule": "cosine", "warmup": 0.1, "weight_decay": 0.01, "clip_norm": 1.0,
    "dropout": 0.5, "label_smoothing": 0.1, "class_weights": "balanced", "patience": 2, "validate_on": 50,
    "validate_every": 2, "compute_dtype": "bfloat16", "order": "window", "joint_fusion": "each",
    "task_stores": "00,11", "task_batches": "8,0",
    "sampling": "uniform", "steps_per_epoch": 9, "choose_epoch": "each",
    "init_from": "fedcba9876543210", "init_part": "head", "freeze": "fusion", "layer_decay": 0.9,
    "encoder_dropout": 0.1, "accumulate": 2, "checkpointing": True, "from_layer": 3, "control": True,
    "mdl": 3,
    "data": "other", "evaluated": "other", "init_data": "other", "encoder": "other", "rows": "cls", "sides": 2,
}  # fmt: skip


def record(score: float | None, validation: float = 0.6, **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"store": "s", "task": "tagging", "label": "tags", "fusion": "last", "head": "tagger"}
    names = set(RunSpec.__dataclass_fields__)
    spec |= {name: value for name, value in fields.items() if name in names}
    if "draw_ids" in spec:
        spec["draw"] = "ids"
    found = {
        "status": "finished", "data": "corpus", "evaluated": fields.get("data", "corpus"), "encoder": "minilm",
        "rows": "words", "sides": 1, "metric": "f1", "score": score, "validation_score": validation,
        "scores": {"validation": {"f1": validation}, "test": {"f1": score}},
        "fusion_parameters": 8, "head_parameters": 100, "seconds": 2.0, "seconds_alone": 3.0,
    }  # fmt: skip
    found |= {name: value for name, value in fields.items() if name not in names}
    return {"spec": RunSpec(**spec).to_dict(), **found}


def frame(*records: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([flat_record(each) for each in records])


def two_seeds(score: float | None, **fields: Any) -> list[dict[str, Any]]:
    return [record(score, data_seed=seed, init_seed=seed, **fields) for seed in (0, 1)]


@pytest.mark.parametrize("name", AXES)
def test_no_table_has_a_mean_over_two_values_of_an_option(name: str) -> None:
    """Two settings of two seeds each, which differ in this option alone."""
    records = [*two_seeds(0.4), *two_seeds(0.9, **{name: OTHER_VALUES[name]})]
    found = frame(*records)
    by = [(), ("fusion",)]
    tables = [summarise(RunGroups(found, columns)) for columns in by]
    for table in tables:
        assert set(table["runs"]) == {2}, table
        assert table["std"].tolist() == pytest.approx([0.0] * len(table))
    assert [len(table) for table in tables] == [2] * len(by)
    report = ReportData([], {}, named(found), {}).chosen
    settings = report.groupby(CELL)[[each for each in AXES if each not in ("init_from", "draw_ids")]]
    assert settings.nunique(dropna=False).to_numpy().max() == 1


def test_a_report_has_a_row_for_each_method_through_the_encoder() -> None:
    found = frame(*two_seeds(0.4), *two_seeds(0.9, method="bitfit", encoder_lr=1e-4))
    chosen = ReportData([], {}, named(found), {}).chosen
    assert set(chosen["method"]) == {"last", "last · bitfit"}


def test_layer_weights_of_two_data_sets_of_a_language_stay_apart() -> None:
    weights = {"atis-de": [0.25, 0.75], "news-de": [0.75, 0.25], "atis-fr": [0.5, 0.5]}
    records = [
        record(0.5, fusion="linear", data=data, store=data, layers=[0, 1], layer_weights=each)
        for data, each in weights.items()
    ]
    by_digest = {RunSpec.from_dict(each["spec"]).digest: each for each in records}
    found = by_language(ReportData([], by_digest, named(frame(*records)), {}))
    assert found is not None
    assert found["runs"].tolist() == [1] * 6
    assert found.groupby("language", sort=False)["weight"].agg(list).to_dict() == {
        "atis-de · tags": [0.25, 0.75], "news-de · tags": [0.75, 0.25], "atis-fr · tags": [0.5, 0.5],
    }  # fmt: skip


def test_a_run_that_finished_in_one_place_counts_by_its_finished_record(tmp_path: Path) -> None:
    for name, each in {"grid": record(None, status="stopped"), "final": record(0.75)}.items():
        RunsFolder(tmp_path / name).write(RunSpec.from_dict(each["spec"]), each, {})
    folders = {name: RunsFolder(tmp_path / name) for name in ("grid", "final")}
    table = frame_of(Comparison("c", ("grid", "final")), folders)
    assert table[["sweep", "status", "score"]].to_numpy().tolist() == [["final", "finished", 0.75]]
    found = read_report_data([tmp_path / "grid", tmp_path / "final"]).frame
    assert found[["folder", "status", "score"]].to_numpy().tolist() == [[str(tmp_path / "final"), "finished", 0.75]]


def test_every_option_of_a_run_is_among_those_that_are_tried() -> None:
    assert {*OTHER_VALUES} == {*AXES} == ({*RunSpec.__dataclass_fields__} | {*AXES}) - {*SEEDS}


def test_a_chosen_rate_says_that_validation_chose_it(tmp_path: Path) -> None:
    for each in [*two_seeds(0.9, validation=0.2), *two_seeds(0.4, validation=0.8, lr=1e-6)]:
        RunsFolder(tmp_path).write(RunSpec.from_dict(each["spec"]), each, {})
    runs = fusionkit.results(tmp_path)
    every = runs.summary("fusion")
    assert every[["fusion", "lr", "mean", "std", "runs"]].to_numpy().tolist() == [
        ["last", 2e-3, 0.9, 0.0, 2], ["last", 1e-6, 0.4, 0.0, 2],
    ]  # fmt: skip
    chosen = runs.summary("fusion", choose_by="validation")
    assert chosen[["lr", "mean", "runs"]].to_numpy().tolist() == [[1e-6, 0.4, 2]]
    assert chosen.attrs["chosen"] == ["lr"]
    assert chosen.attrs["notes"][0] == "chosen by validation: lr of 1e-06, 0.002"
    # A selection of runs is a table of runs still.
    assert runs[runs["lr"] == 2e-3].summary("fusion")["mean"].tolist() == [0.9]
    with pytest.raises(UsageError, match="unknown column of the results 'fusoin'"):
        runs.summary("fusoin")


def test_scores_on_validation_and_on_test_never_meet_in_a_mean() -> None:
    """Two sources of one name, of which one has no test split."""
    with_test, without = two_seeds(0.9, validation=0.5), two_seeds(None, validation=0.3, store="other")
    for by in ((), ("fusion",), ("data", "fusion")):
        table = summarise(RunGroups(frame(*with_test, *without), by)).set_index("scored_on")
        assert table["mean"].to_dict() == {"test": 0.9, "validation": pytest.approx(0.3)}
        assert table["runs"].tolist() == [2, 2]
        [note] = [each for each in table.attrs["notes"] if "optimistic" in each]
        assert note.startswith("some groups have no test score")
    languages = [*two_seeds(0.9, data="de", store="de"), *two_seeds(None, validation=0.3, data="fr", store="fr")]
    averaged = summarise(RunGroups(frame(*languages), ["fusion"], average=["data"]))
    assert averaged[["scored_on", "mean"]].to_numpy().tolist() == [["test", 0.9], ["validation", pytest.approx(0.3)]]
    with pytest.raises(UsageError, match="no common mean"):
        RunGroups(frame(*languages), ["fusion"], average=["scored_on"])
    on_validation = tabulate(frame(*languages), ["fusion"], average=["data"], split="validation")
    assert on_validation[["scored_on", "mean"]].to_numpy().tolist() == [["validation", pytest.approx(0.45)]]
    compared = tabulate(
        frame(*languages, *two_seeds(0.8, data="de", store="de", fusion="linear")), ["fusion"], baseline="last"
    )
    pairs = compared[compared["fusion"] == "linear"]
    assert pairs[["difference", "pairs"]].to_numpy().tolist() == [[pytest.approx(-0.1), 2]]


def test_a_failed_run_counts_beside_those_of_its_store() -> None:
    failed = record(None, data_seed=5) | {"status": "failed", "metric": None, "validation_score": None}
    table = summarise(RunGroups(frame(*two_seeds(0.9), failed, *two_seeds(None, store="other")), ["fusion"]))
    assert table[["scored_on", "runs", "failed"]].to_numpy().tolist() == [["test", 2, 1], ["validation", 2, 0]]


def test_a_failed_run_counts_beside_those_of_its_task() -> None:
    """One store, whose test split lacks the labels of one column."""
    lost = {"status": "failed", "metric": None, "validation_score": None}
    failed = [record(None, data_seed=5, label=label) | lost for label in ("tags", "pos")]
    table = summarise(RunGroups(frame(*two_seeds(0.9), *two_seeds(None, label="pos"), *failed), ["label"]))
    assert table[["label", "scored_on", "runs", "failed"]].to_numpy().tolist() == [
        ["tags", "test", 2, 1], ["pos", "validation", 2, 1],
    ]  # fmt: skip


def test_a_failed_run_counts_once_on_each_store_that_it_would_be_scored_on() -> None:
    judges: dict[str, Any] = {"evaluated": "de, fr", "evaluate_on": "d,f"}
    tests = {"de": {"f1": 0.5}, "fr": {"f1": 0.4}}
    lost = {"status": "failed", "metric": None, "validation_score": None}
    records = [*two_seeds(0.5, tests=tests, **judges), record(None, data_seed=2, **judges) | lost]
    rows = pd.DataFrame([row for each in records for row in flat_tests(each)])
    table = summarise(RunGroups(rows, ["evaluated"]))
    assert table[["evaluated", "scored_on", "runs", "failed"]].to_numpy().tolist() == [
        ["de", "test", 2, 1], ["fr", "test", 2, 1],
    ]  # fmt: skip
    assert summarise(RunGroups(rows, ["fusion"], average=["evaluated"]))["failed"].tolist() == [1]
    # One row per run is of the first store, as its score is.
    assert frame(*records)["evaluated"].tolist() == ["de"] * 3


def test_a_run_says_on_which_split_each_of_its_scores_is() -> None:
    tested = record(0.5, tests={"de": {"f1": 0.5}, "fr": {"f1": 0.4}})
    assert [(row["evaluated"], row["scored_on"]) for row in flat_tests(tested)] == [("de", "test"), ("fr", "test")]
    assert flat_record(record(None))["scored_on"] == "validation"
    # A score that was recorded on validation alone is not one on test, whatever split there is.
    scores = {"validation": {"f1": 0.5, "matthews": 0.3}, "test": {"f1": 0.5}}
    assert flat_record(record(0.5, scores=scores), "matthews")["scored_on"] == "validation"


def test_a_score_has_a_named_unit() -> None:
    shares = summarise(RunGroups(frame(*two_seeds(0.5))))
    assert shares["unit"].tolist() == ["fraction"]
    surprise = summarise(
        RunGroups(frame(*two_seeds(17.0, metric="perplexity"), *two_seeds(2.5, metric="cross_entropy", lr=1.0)))
    )
    assert surprise["unit"].tolist() == ["perplexity", "nats"]
    assert np.isfinite(surprise["mean"].to_numpy()).all()


def test_groups_of_one_value_stand_together_in_the_order_of_by() -> None:
    """Runs of two sweeps: all of train first, then draws of each size."""
    runs = [*two_seeds(0.5, fusion="last"), *two_seeds(0.6, fusion="linear")]
    for fusion in ("last", "linear"):
        for shots in (8, 2):
            runs += two_seeds(0.1, fusion=fusion, shots=shots)
    table = tabulate(frame(*runs), ["shots", "fusion"])
    order = [
        (shots if np.isfinite(shots) else None, fusion)
        for shots, fusion in zip(table["shots"], table["fusion"], strict=True)
    ]
    assert order == [(n, fusion) for n in (None, 8, 2) for fusion in ("last", "linear")]
    assert table.attrs["notes"]
    assert tabulate(frame(*runs), ["fusion", "shots"])["fusion"].tolist() == ["last"] * 3 + ["linear"] * 3


def answers_of(table: pd.DataFrame) -> ExampleScores:
    """Answers with each run's score: accuracies over 40 examples of which the first ones are right."""
    scores = dict(zip(table["digest"], table["score"], strict=True))
    evaluated = set(table["evaluated"])

    def read(digest: str) -> dict[str, RunAnswers]:
        told = np.arange(40, dtype=np.uint8) % 2
        found = np.where(np.arange(40) < 40 * scores[digest], told, 1 - told)
        kept = RunAnswers({"": KeptAnswers(CLASS, {"told": told, "found": found}, ("a", "b"))})
        return dict.fromkeys(evaluated, kept)

    return ExampleScores(read)


CLASSES = {"metric": "accuracy", "task": "classification", "label": "label", "head": "classifier"}


def test_an_average_over_unlike_seeds_has_no_interval_over_examples_either() -> None:
    """Its mean weighs the values equally, and errors over examples would weigh them by their numbers of runs."""
    table = frame(*two_seeds(0.5, data="de", evaluated="de"), record(0.7, data="en", evaluated="en", store="t"))
    table = table.assign(**CLASSES)
    groups = RunGroups(table, ["fusion"], average=["data"], answers=answers_of(table))
    found = summarise(groups, over="examples").iloc[0]
    assert found["mean"] == pytest.approx(0.6)
    assert found[["std", "low", "high", "se_examples"]].isna().all()


def test_failed_runs_of_another_fusion_do_not_change_what_intervals_are_over() -> None:
    good = frame(*two_seeds(0.5)).assign(**CLASSES)
    lost = frame(*two_seeds(None, fusion="dwatt", status="failed", metric=None))
    one = good[:1]
    for table, over in ((good, "both"), (pd.concat([good, lost], ignore_index=True), "both"), (one, "examples")):
        assert summarise(RunGroups(table, ["fusion"], answers=answers_of(good))).attrs["over"] == over


def test_runs_without_the_score_that_is_shown_do_not_change_what_intervals_are_over() -> None:
    """As with ``--metric f1``, which runs that learned intents do not have."""
    table = frame(*two_seeds(0.5, label="slots"), *two_seeds(None, label="intent", validation_score=None))
    table = table.assign(**CLASSES | {"label": table["label"]})
    for over in (None, "both"):
        found = summarise(RunGroups(table, ["label"], answers=answers_of(table)), over=over)
        assert found.attrs["over"] == "both"
        assert found["scored_on"].isna().tolist() == [False, True]
        assert not any("no answers are kept" in note for note in found.attrs["notes"])
    averaged = summarise(RunGroups(table, ["fusion"], average=["label"], answers=answers_of(table)))
    assert averaged["test_examples"].tolist() == [40]


@pytest.mark.parametrize(
    "seeds", [[(k, k) for k in range(5)], [(d, i) for d in range(3) for i in range(3)]], ids=["alone", "crossed"]
)
def test_an_interval_over_seeds_is_the_tables_wherever_it_is_shown(seeds: list[tuple[int, int]]) -> None:
    scores = np.random.default_rng(0).normal(0.5, 0.1, len(seeds))
    runs = [record(float(s), data_seed=d, init_seed=i) for s, (d, i) in zip(scores, seeds, strict=True)]
    table = summarise(RunGroups(frame(*runs)), over="seeds")
    half = half_over_seeds(scores, [draw for draw, _ in seeds], [init for _, init in seeds])
    assert (table["high"][0] - table["low"][0]) / 2 == pytest.approx(half)
