"""Results on disk and in groups: one row a run, means and intervals against numbers worked out by hand."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fusionkit
from fusionkit.errors import StoreError, UsageError
from fusionkit.fit import RunGroups, RunsFolder, expand, fit, summarise
from fusionkit.runs.claims import runs_status
from fusionkit.runs.find_run import find_run
from fusionkit.runs.record import FLAT, IDENTITY, flat_record
from fusionkit.runs.shown_split import with_scores_of
from fusionkit.runs.tabulate import tabulate
from fusionkit.specs import RunSpec
from fusionkit.store import Store

# Quantiles 0.975 of Student's t with 1, 2 and 4 degrees of freedom, from a printed table.
T = {1: 12.7062, 2: 4.3027, 4: 2.7764}

OVER_SEEDS = "intervals and tests generalise to other seeds, on these test examples"


def record(
    score: float | None = 0.5, validation: float = 0.6, status: str = "finished", **fields: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {"store": "s", "task": "tagging", "label": "tags", "fusion": "last", "head": "tagger"}
    names = set(RunSpec.__dataclass_fields__)
    spec |= {name: value for name, value in fields.items() if name in names}
    good = status == "finished"
    found = {
        "status": status, "data": "corpus", "evaluated": fields.get("data", "corpus"), "encoder": "minilm",
        "rows": "words", "sides": 1, "metric": "f1" if good else None,
        "score": score if good else None, "validation_score": validation if good else None,
        "fusion_parameters": 8 if good else None, "head_parameters": 100 if good else None,
        "seconds": 2.0 if good else None, "seconds_alone": 3.0 if good else None,
    }  # fmt: skip
    return {"spec": RunSpec(**spec).to_dict(), **found} | {k: v for k, v in fields.items() if k not in names}


def frame(*records: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([flat_record(each) for each in records])


def runs_of(scores: list[float], **fields: Any) -> list[dict[str, Any]]:
    return [record(score, score, data_seed=seed, init_seed=seed, **fields) for seed, score in enumerate(scores)]


def test_a_table_has_one_row_a_run(corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("last", "linear"), seeds=2, shots=(None, 1), epochs=(1,))
    records = fit(store, specs, RunsFolder(tmp_path), watch)
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert len(table) == len(specs) == 8
    assert set(table.columns) == {"digest", *RunSpec.__dataclass_fields__, *FLAT, IDENTITY}
    key = ["fusion", "data_seed", "shots"]
    found = table.set_index(key)["score"].to_dict()
    wanted = {
        (r["spec"]["fusion"], r["spec"]["data_seed"], r["spec"]["shots"] or math.nan): r["score"] for r in records
    }
    assert {str(k): v for k, v in found.items()} == {str((f, s, float(n))): v for (f, s, n), v in wanted.items()}
    pd.testing.assert_frame_equal(RunsFolder(tmp_path).frame(), table, check_dtype=False)


def test_the_curves_lie_beside_the_table(corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("last", "linear"), seeds=2, epochs=(3,))
    records = fit(store, specs, RunsFolder(tmp_path), watch)
    table, curves = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("results", "curves"))
    assert curves.columns.tolist() == ["digest", "epoch", "loss", "validation_score", "seconds", "seconds_alone"]
    wanted = {
        (
            RunSpec.from_dict(record["spec"]).digest,
            *(each[name] for name in ("epoch", "loss", "validation_score")),
            seconds,
            record["seconds_alone"] / record["seconds"] * seconds,
        )
        for record in records
        for each, seconds in zip(record["curve"], record["epoch_seconds"], strict=True)
    }
    assert set(curves.itertuples(index=False, name=None)) == wanted
    assert len(curves) == len(wanted) == len(specs) * 3
    best = table.merge(curves, left_on=["digest", "best_epoch"], right_on=["digest", "epoch"])
    assert best["validation_score_x"].tolist() == best["validation_score_y"].tolist()
    assert len(best) == len(specs)
    assert all((tmp_path / digest / "run.json").is_file() for digest in table["digest"])
    for record in records:
        times = record["epoch_seconds"]
        assert 0 < times[0] < times[1] < times[2] < record["seconds"]  # which has the last scores in it, too


def test_runs_without_a_curve_leave_an_empty_table_of_curves(tmp_path: Path) -> None:
    runs, one = RunsFolder(tmp_path), record(status="failed")
    runs.write(RunSpec.from_dict(one["spec"]), one, {})
    runs.write_table()
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    assert len(curves) == 0
    assert [str(kind) for kind in curves.dtypes[1:]] == ["int64", *["float64"] * 4]


def test_runs_are_listed_in_the_order_they_ended(tmp_path: Path) -> None:
    runs, names = RunsFolder(tmp_path), ["linear", "last", "concat", "attention", "layer:2", "layer:1"]
    for place, name in enumerate(names):
        one = record(fusion=name)
        spec = RunSpec.from_dict(one["spec"])
        runs.write(spec, one, {})
        os.utime(tmp_path / spec.digest / "run.json", (place, place))
    assert runs.frame()["fusion"].tolist() == names


def test_a_failed_run_has_a_row_without_scores(tmp_path: Path) -> None:
    runs = RunsFolder(tmp_path)
    for each in (record(data_seed=0), record(status="failed", data_seed=1)):
        runs.write(RunSpec.from_dict(each["spec"]), each, {})
    runs.write_table()
    table = pd.read_parquet(tmp_path / "results.parquet").sort_values("data_seed")
    assert table["status"].tolist() == ["finished", "failed"]
    assert table["score"].isna().tolist() == [False, True]


def test_a_mean_has_the_interval_of_students_t() -> None:
    row = summarise(RunGroups(frame(*runs_of([0.5, 0.7, 0.9])))).iloc[0]
    assert row["mean"] == pytest.approx(0.7)
    assert row["std"] == pytest.approx(0.2)  # ((0.2² + 0 + 0.2²) / 2)^½
    half = T[2] * 0.2 / math.sqrt(3)
    assert (row["low"], row["high"]) == (pytest.approx(0.7 - half, abs=1e-5), pytest.approx(0.7 + half, abs=1e-5))
    assert (row["runs"], row["failed"], row["metric"]) == (3, 0, "f1")
    assert (row["parameters"], row["seconds_alone"], row["validation"]) == (108.0, 3.0, pytest.approx(0.7))


@pytest.mark.parametrize(
    ("scores", "freedom", "std"), [([0.2, 0.6], 1, 0.08**0.5), ([0.1, 0.2, 0.3, 0.4, 0.5], 4, 0.025**0.5)]
)
def test_the_interval_widens_with_fewer_runs(scores: list[float], freedom: int, std: float) -> None:
    row = summarise(RunGroups(frame(*runs_of(scores)))).iloc[0]
    assert row["std"] == pytest.approx(std)
    assert row["high"] - row["mean"] == pytest.approx(T[freedom] * std / math.sqrt(freedom + 1), rel=1e-4)


def test_one_run_has_neither_deviation_nor_interval() -> None:
    row = summarise(RunGroups(frame(record(0.4)))).iloc[0]
    assert row["mean"] == 0.4
    assert row[["std", "low", "high"]].isna().all()


def test_without_a_test_split_validation_is_what_is_averaged() -> None:
    row = summarise(RunGroups(frame(record(None, 0.25, data_seed=0), record(None, 0.75, data_seed=1)))).iloc[0]
    assert row["mean"] == 0.5


def test_the_score_of_validation_is_shown_where_it_is_asked_for() -> None:
    runs = [
        record(0.1 * seed, 0.7 + 0.1 * seed, data_seed=seed, fusion=f) for seed in range(2) for f in ("last", "linear")
    ]
    tests = pd.DataFrame([{**flat_record(one), "evaluated": name} for one in runs for name in ("corpus", "other")])
    assert with_scores_of(tests, "test") is tests
    shown = summarise(RunGroups(with_scores_of(tests, "validation"), ["fusion"]))
    assert set(shown["scored_on"]) == {"validation"}
    assert shown["runs"].tolist() == [2, 2]  # a run that two stores were scored on counts once
    assert shown["mean"].tolist() == pytest.approx([0.75, 0.75])


def test_failed_runs_are_counted_and_not_averaged() -> None:
    row = summarise(RunGroups(frame(*runs_of([0.4, 0.6]), record(status="failed", data_seed=7)))).iloc[0]
    assert (row["runs"], row["failed"], row["mean"]) == (2, 1, pytest.approx(0.5))
    alone = summarise(RunGroups(frame(record(status="failed")))).iloc[0]
    assert (alone["runs"], alone["failed"]) == (0, 1)
    assert alone[["metric", "mean", "parameters"]].isna().all()


def test_groups_are_made_by_what_differs_but_the_seeds() -> None:
    table = summarise(RunGroups(frame(*runs_of([0.1, 0.3], lr=1e-3), *runs_of([0.5, 0.7], lr=1e-2))))
    assert [name for name in table.columns if name not in ("metric", "runs", "failed")][:4] == [
        "task",
        "label",
        "fusion",
        "lr",
    ]
    assert table[["lr", "mean", "runs"]].to_numpy().tolist() == [
        [1e-3, pytest.approx(0.2), 2],
        [1e-2, pytest.approx(0.6), 2],
    ]


def test_the_tasks_of_a_run_are_no_difference_between_runs() -> None:
    runs = frame(*runs_of([0.1, 0.3]), *runs_of([0.5, 0.7], fusion="linear"))
    tasks = [runs.assign(task=task, label=label) for task, label in (("sst2", "a"), ("trec", "b"), ("mean", None))]
    table = summarise(RunGroups(pd.concat(tasks), ["fusion"]))
    assert table[["fusion", "task", "runs"]].to_numpy().tolist() == [
        [fusion, task, 2] for task in ("sst2", "trec", "mean") for fusion in ("last", "linear")
    ]
    assert table.attrs["notes"] == [OVER_SEEDS]
    alone = frame(*runs_of([0.2], label="c"))  # a run of another task beside them
    assert "differ in task, label:" in summarise(RunGroups(pd.concat([*tasks, alone]), ["fusion"])).attrs["notes"][0]


def test_runs_over_stores_that_nothing_legible_tells_apart_stay_apart() -> None:
    table = summarise(RunGroups(frame(*runs_of([0.1, 0.3], store="one"), *runs_of([0.5, 0.7], store="two"))))
    assert table["store"].tolist() == ["one", "two"]
    told = summarise(RunGroups(frame(*runs_of([0.1], store="one", data="de"), *runs_of([0.5], store="two", data="fr"))))
    assert "store" not in told
    assert told["data"].tolist() == ["de", "fr"]


def test_what_differs_within_a_named_group_becomes_a_column() -> None:
    records = [*runs_of([0.1, 0.3], lr=1e-3), *runs_of([0.5, 0.7], lr=1e-2), *runs_of([0.9], fusion="linear")]
    by_fusion = summarise(RunGroups(frame(*records), ["fusion"]))
    assert by_fusion[["fusion", "lr", "runs"]].to_numpy().tolist() == [
        ["last", 1e-3, 2], ["last", 1e-2, 2], ["linear", RunSpec.__dataclass_fields__["lr"].default, 1],
    ]  # fmt: skip
    [note, speaks] = by_fusion.attrs["notes"]
    assert speaks == OVER_SEEDS
    assert note.startswith("runs of one group differ in lr: each value has a row of its own; --choose-by validation")
    assert summarise(RunGroups(frame(*records), ["fusion", "lr"])).attrs["notes"] == [OVER_SEEDS]
    by_seed = summarise(RunGroups(frame(*records[:4]), ["data_seed", "fusion"]))
    assert list(by_seed)[:3] == ["data_seed", "fusion", "lr"]
    assert by_seed["runs"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ([{"pool": "mean"}, {"pool": "max"}], ["pool"]),
        ([{"lr": 1e-3, "epochs": 5}, {"lr": 1e-2, "epochs": 9}], ["lr", "epochs"]),
        ([{"data": "de", "store": "one"}, {"data": "fr", "store": "two"}], ["data"]),
        ([{"store": "one"}, {"store": "two"}], ["store"]),
        ([{"draw": "ids", "draw_ids": "a", "data_seed": 0}, {"draw": "ids", "draw_ids": "b", "data_seed": 1}], []),
        (
            [{"draw": "ids", "draw_ids": "a", "data_seed": 0}, {"draw": "ids", "draw_ids": "b", "data_seed": 0}],
            ["draw_ids"],
        ),
    ],
)
def test_no_mean_is_over_different_settings(fields: list[dict[str, Any]], columns: list[str]) -> None:
    given = [{"label": "tags", **each} for each in fields]
    table = summarise(RunGroups(frame(*(record(0.5, **each) for each in given)), ["fusion"]))
    assert list(table)[: 1 + len(columns)] == ["fusion", *columns]
    assert "metric" in list(table)[1 + len(columns) :][:1]


def test_an_option_that_goes_with_the_group_is_no_column() -> None:
    records = [*runs_of([0.1, 0.3], label="tags", lr=1e-3), *runs_of([0.5, 0.7], label="pos", lr=1e-2)]
    table = summarise(RunGroups(frame(*records), ["label"]))
    assert list(table)[:2] == ["label", "metric"]
    assert table.attrs["notes"] == [OVER_SEEDS]


def test_an_average_is_a_mean_of_means_and_its_deviation_is_over_seeds() -> None:
    languages = {"de": [0.1, 0.3, 0.2], "fr": [0.7, 0.9, 0.5]}
    records = [each for data, scores in languages.items() for each in runs_of(scores, data=data, store=data)]
    table = summarise(RunGroups(frame(*records), ["fusion"], average=["data"]))
    assert list(table)[:2] == ["fusion", "metric"]
    row = table.iloc[0]
    assert (row["runs"], row["mean"]) == (6, pytest.approx(0.45))
    assert row["std"] == pytest.approx(float(np.std([0.4, 0.6, 0.35], ddof=1)))  # not 0.31, that of all six
    half = T[2] * row["std"] / math.sqrt(3)
    assert row["high"] - row["mean"] == pytest.approx(half, rel=1e-4)
    assert table.attrs["notes"] == [
        "averaged over data de, fr; mean of means, std over seeds",
        f"{OVER_SEEDS}, and of these data sets alone",
    ]
    # Each language counts the same, however many of its runs finished.
    [lacks] = summarise(RunGroups(frame(*records[:-1]), ["fusion"], average=["data"])).to_dict(orient="records")
    assert lacks["mean"] == pytest.approx((0.2 + 0.8) / 2)
    assert math.isnan(lacks["std"])
    assert math.isnan(lacks["low"])


def test_averages_that_do_not_compare_are_told() -> None:
    records = [
        *runs_of([0.1, 0.3], data="de"),
        *runs_of([0.5, 0.7], data="fr"),
        *runs_of([0.5, 0.7], fusion="linear", data="fr"),
    ]
    found = summarise(RunGroups(frame(*records, record(0.9, data="fr", data_seed=7)), ["fusion"], average=["data"]))
    told, lacks, _ = found.attrs["notes"]
    assert told == (
        "averaged over data de, fr (last); averaged over data fr (linear); averages over other values of data do not "
        "compare; mean of means, std over seeds"
    )
    assert lacks == "no std and no interval where not every data has the same seeds: last"
    unscored = record(None, validation=math.nan, data="es")  # of a metric that its data lack
    found = summarise(RunGroups(frame(*records[:4], unscored), ["fusion"], average=["data"]))
    assert found.attrs["notes"][0].startswith("averaged over data de, fr; ")
    with pytest.raises(UsageError, match="data is both grouped by and averaged over"):
        RunGroups(frame(*records), ["data"], average=["data"])
    with pytest.raises(UsageError, match="unknown column of the results 'dtaa'"):
        RunGroups(frame(*records), average=["dtaa"])


def test_an_average_that_leaves_no_groups_is_refused() -> None:
    with pytest.raises(UsageError, match="leaves no groups") as caught:
        RunGroups(frame(*runs_of([0.1, 0.3])), average=["task", "label", "fusion"])
    assert caught.value.received == "average task, label, fusion"


def test_what_an_average_leaves_open_is_a_column_still() -> None:
    records = [each for data in ("de", "fr") for lr in (1e-3, 1e-2) for each in runs_of([0.1, 0.3], data=data, lr=lr)]
    table = summarise(RunGroups(frame(*records), average=["data"]))
    assert list(table)[:5] == ["task", "label", "fusion", "lr", "metric"]
    assert table["runs"].tolist() == [4, 4]


@pytest.mark.parametrize("by", [["metric"], ["seconds_alone", "fusion"], ["fusion", "fusion"]])
def test_a_column_stands_once_however_it_is_asked_for(by: list[str]) -> None:
    table = summarise(RunGroups(frame(*runs_of([0.1, 0.3])), by))
    assert table.columns.is_unique
    assert table[by[0]].tolist() == ["f1" if by[0] == "metric" else 3.0 if by[0] == "seconds_alone" else "last"]


def test_draws_of_all_examples_are_a_group_of_their_own() -> None:
    table = summarise(RunGroups(frame(*runs_of([0.1, 0.3]), *runs_of([0.5, 0.7], shots=8))))
    assert table["shots"].isna().tolist() == [True, False]
    assert table["runs"].tolist() == [2, 2]


def test_a_misspelt_column_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown column of the results 'fusoin'") as caught:
        RunGroups(frame(record()), ["fusoin"])
    assert caught.value.remedy == "did you mean 'fusion'?"


@pytest.mark.parametrize("content", ["notes.txt", "0123456789abcdef.txt", "0123456789abcdeF/x"])
def test_a_folder_of_other_files_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / content
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match="is no folder of runs"):
        RunsFolder(tmp_path).claim()
    assert path.read_text() == "mine"
    with pytest.raises(UsageError, match="is no folder of runs") as caught:
        RunsFolder(path).claim()
    assert caught.value.received == "a file"


def test_a_run_that_was_killed_while_it_was_kept_is_no_obstacle(tmp_path: Path) -> None:
    one = record()
    spec = RunSpec.from_dict(one["spec"])
    (tmp_path / spec.digest).mkdir()
    (tmp_path / spec.digest / ".weights.safetensors.1.partial").write_bytes(b"half")
    runs = RunsFolder(tmp_path)
    runs.claim()
    assert runs.record(spec) is None
    runs.write(spec, one, {"a": torch.ones(2)})
    content = (tmp_path / spec.digest / "weights.safetensors").read_bytes()
    assert runs.record(spec) == {**one, "weights_sha256": hashlib.sha256(content).hexdigest()}


def test_an_empty_folder_has_no_runs_to_show(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no finished run"):
        RunsFolder(tmp_path / "new").records()


SPEC_ALONE = json.dumps({"spec": {"store": "s", "task": "tagging", "label": "t", "fusion": "last", "head": "tagger"}})


@pytest.mark.parametrize(
    "text",
    ['{"spec": 3}', SPEC_ALONE, '{"score": 1}', '{"spec": {"fusion": "last"}}', '{"spec": {"fusoin": 1}}', '{"sp'],
)
def test_a_damaged_record_is_named_as_such(tmp_path: Path, text: str) -> None:
    (tmp_path / "0123456789abcdef").mkdir()
    (tmp_path / "0123456789abcdef" / "run.json").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        RunsFolder(tmp_path).frame()


def test_a_damaged_record_is_named_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    for name, text in {"0123456789abcdef": '{"sp', "fedcba9876543210": '{"spec": 3}'}.items():
        runs = RunsFolder(tmp_path / name)
        path = runs.path / name / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        with pytest.raises(StoreError) as caught:
            runs.records()
        assert caught.value.what == f"{path} is damaged"
        assert caught.value.remedy == "remove that run's folder; the command that made it trains it again"


def test_a_runs_folder_that_was_copied_aside_is_no_second_run(tmp_path: Path) -> None:
    runs, one = RunsFolder(tmp_path), record()
    spec = RunSpec.from_dict(one["spec"])
    runs.write(spec, one, {})
    for name in (f"{spec.digest}.old", f"copy of {spec.digest}", spec.digest.upper()[:15]):
        shutil.copytree(tmp_path / spec.digest, tmp_path / name)
    runs.write_table()
    assert len(pd.read_parquet(tmp_path / "results.parquet")) == len(runs.records()) == len(runs.frame()) == 1
    assert runs_status(runs)["finished"] == 1
    assert find_run(tmp_path) == find_run(tmp_path / spec.digest[:8]) == [tmp_path / spec.digest]
    (tmp_path / spec.digest / "run.json").unlink()
    with pytest.raises(UsageError, match="holds no finished run"):
        runs.records()


def test_a_record_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "0123456789abcdef" / "run.json").mkdir(parents=True)  # a folder: root may read every file
    with pytest.raises(StoreError, match=r"run\.json cannot be read"):
        RunsFolder(tmp_path).records()


@pytest.mark.parametrize("moment", ["stat", "read"])
def test_a_record_that_has_just_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Between its being listed and looked at: another process tries a failed run again."""
    runs, kept, failed = RunsFolder(tmp_path), record(), record(status="failed", data_seed=1)
    for each in (kept, failed):
        runs.write(RunSpec.from_dict(each["spec"]), each, {})
    gone = tmp_path / RunSpec.from_dict(failed["spec"]).digest / "run.json"
    glob, read = Path.glob, Path.read_bytes

    def listed(path: Path, pattern: str) -> list[Path]:
        found = list(glob(path, pattern))
        assert gone in found
        if moment == "stat":
            gone.unlink()
        return found

    def looked_into(path: Path) -> bytes:
        if path == gone:
            gone.unlink()
        return read(path)

    monkeypatch.setattr(Path, "glob", listed)
    monkeypatch.setattr(Path, "read_bytes", looked_into)
    assert runs.records() == [kept]
    assert not gone.exists()


def test_a_table_of_no_records_is_not_made(tmp_path: Path) -> None:
    RunsFolder(tmp_path).write_table()  # the only one had failed and is tried again
    assert list(tmp_path.iterdir()) == []


def test_any_recorded_score_can_be_summarised(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    for seed, matthews in enumerate((0.2, 0.4)):
        scores = {"test": {"accuracy": 0.9, "matthews": matthews}, "validation": {"accuracy": 0.8, "matthews": 0.1}}
        kept = record(0.9, 0.8, init_seed=seed, scores=scores)
        folder.write(RunSpec.from_dict(kept["spec"]), kept, {})
    summary = summarise(RunGroups(folder.frame("matthews")))
    assert summary["metric"].tolist() == ["matthews"]
    assert summary["mean"].tolist() == [pytest.approx(0.3)]
    assert summary["validation"].tolist() == [pytest.approx(0.1)]
    with pytest.raises(UsageError, match="did you mean 'matthews'"):
        folder.frame("mathews")


def test_several_folders_are_one_table_in_which_a_run_counts_once(tmp_path: Path) -> None:
    curve = [{"epoch": 1, "loss": 2.0, "validation_score": None}, {"epoch": 2, "loss": 1.0, "validation_score": 0.6}]
    for folder, seeds in (("a", (0, 1)), ("b", (1, 2))):
        for seed in seeds:
            each = record(score=seed / 10, data_seed=seed, curve=curve, epoch_seconds=[0.5, 1.5])
            RunsFolder(tmp_path / folder).write(RunSpec.from_dict(each["spec"]), each, {})
    a, b = tmp_path / "a", str(tmp_path / "b")
    frame = fusionkit.results(a, b)
    found = frame[["data_seed", "score", "folder"]].sort_values("data_seed").to_numpy().tolist()
    assert found == [[0, 0.0, str(a)], [1, 0.1, str(a)], [2, 0.2, b]]
    pd.testing.assert_frame_equal(frame, fusionkit.results([a, b]))
    epochs = fusionkit.curves([a], b).sort_values(["data_seed", "epoch"])
    assert epochs[["data_seed", "epoch", "loss"]].to_numpy().tolist() == [
        [seed, epoch, loss] for seed in range(3) for epoch, loss in ((1, 2.0), (2, 1.0))
    ]
    assert epochs["validation_score"].isna().tolist() == [True, False] * 3
    assert epochs["seconds"].tolist() == [0.5, 1.5] * 3
    assert set(epochs["fusion"]) == {"last"}
    assert len(fusionkit.layer_weights(a, b)) == 0
    with pytest.raises(UsageError, match="no folder of runs is named"):
        fusionkit.results([])


def test_layer_weights_stand_by_layer_and_by_what_a_joint_run_learns(tmp_path: Path) -> None:
    alone = record(fusion="linear", layers=[0, 3], layer_weights=[0.25, 0.75], label="tags")
    joint = record(
        task="joint", label="intent,tags", head="classifier+crf", fusion="linear", layers=[3, 6],
        layer_weights=[0.5, 0.5], others={"slots": {"layer_weights": [0.125, 0.875]}},
    )  # fmt: skip
    for each in (alone, joint, record(layers=[6])):
        RunsFolder(tmp_path).write(RunSpec.from_dict(each["spec"]), each, {})
    frame = fusionkit.layer_weights(tmp_path)
    found = sorted(frame[["task", "label", "layer", "weight"]].to_numpy().tolist())
    assert found == [
        ["joint", "intent", 3, 0.5], ["joint", "intent", 6, 0.5], ["joint", "tags", 3, 0.125],
        ["joint", "tags", 6, 0.875], ["tagging", "tags", 0, 0.25], ["tagging", "tags", 3, 0.75],
    ]  # fmt: skip


def test_validation_chooses_by_the_score_that_is_shown(tmp_path: Path) -> None:
    folder, names = RunsFolder(tmp_path), ("accuracy", "matthews")
    told = {1e-3: ((0.9, 0.1), (0.5, 0.2)), 2e-3: ((0.8, 0.7), (0.6, 0.3))}  # by rate: on validation, on test
    for rate, (validation, test) in told.items():
        scores = {
            "validation": dict(zip(names, validation, strict=True)), "test": dict(zip(names, test, strict=True)),
        }  # fmt: skip
        kept = record(test[0], validation[0], lr=rate, metric="accuracy", scores=scores)
        folder.write(RunSpec.from_dict(kept["spec"]), kept, {})
    for metric, rate, mean in ((None, 1e-3, 0.5), ("accuracy", 1e-3, 0.5), ("matthews", 2e-3, 0.3)):
        table = tabulate(folder.frame(metric, each_test=True), ["fusion"], choose_by="validation")
        assert table[["lr", "mean"]].to_numpy().tolist() == [[rate, mean]]
