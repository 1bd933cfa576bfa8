"""Tasks over stores of their own after training: scored anew as they were scored, and looked into in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import fusionkit
from fusionkit.cli.evaluate import evaluate as command
from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.errors import UsageError
from fusionkit.evaluation.answers import mistakes_frame
from fusionkit.exported import export_run
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.io.files import read_json
from fusionkit.options.comparison import Comparison
from fusionkit.report import FIGURES
from fusionkit.report.predictions import all_predictions
from fusionkit.report.predictions_panel import inside_of
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.tables.paper_tables import markdown
from fusionkit.runs.tabulate import tabulate
from fusionkit.store import Store, open_store
from fusionkit.study.report_steps import frame_of
from tests.tuning.conftest import encoded


@pytest.fixture(scope="module")
def runs(stores: TaskStores, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run whose tasks have PALs and each its best epoch, one of adapters, and heads over a shared fusion."""
    out = tmp_path_factory.mktemp("runs")
    usual: dict[str, Any] = {"fusions": ["linear"], "epochs": (3,), "batch_sizes": (8,), "pool": "cls", "lrs": (1e-2,)}
    own: dict[str, Any] = {"encoder_lrs": (3e-3,), "encoder_dropout": 0.0}
    specs = [
        *expand(stores, **usual, methods=["pals:6"], choose_epoch="each", **own),
        *expand(stores, **usual, methods=["houlsby:4"], **own),
        *expand(stores, **usual),
    ]
    records = fit(stores, specs, RunsFolder(out))
    assert [record["status"] for record in records] == ["finished"] * 3
    return {spec.method: out / spec.digest for spec in specs}


@pytest.fixture(scope="module")
def places(stores: TaskStores) -> dict[str, Path]:
    return {name: Path(str(store.path)) for name, store in stores.store_of.items()}


@pytest.mark.parametrize("method", ["pals:6", "houlsby:4", "frozen"])
def test_scores_over_the_stores_are_those_of_training(
    runs: dict[str, Path], places: dict[str, Path], method: str, model_folder: Path, tmp_path: Path
) -> None:
    told = read_json(runs[method] / "run.json")["scores"]["test"]
    [both] = fusionkit.evaluate(runs[method], data=[places["kind"], places["tags"]])
    assert both.scores == pytest.approx(told, abs=1e-6)
    export_run(runs[method], tmp_path / "head")
    [away] = fusionkit.evaluate(tmp_path / "head", data=list(places.values()), encoder=str(model_folder))
    assert away.scores == pytest.approx(told, abs=1e-6)
    assert {name: len(head.gold) for name, head in both.heads.items()} == {"kind": 6, "tags": 16}
    for name in ("tags", "kind"):
        [one] = fusionkit.evaluate(runs[method], data=places[name])
        assert ([*one.heads], one.notes) == ([name], [])
        assert {f"{name}_{score}": value for score, value in one.scores.items()} == pytest.approx(
            {score: value for score, value in told.items() if score.startswith(f"{name}_")}, abs=1e-6
        )


def test_a_table_can_show_another_score_of_the_tasks_that_have_it(runs: dict[str, Path]) -> None:
    folder = runs["frozen"].parent
    found = fusionkit.results(folder, metric="macro_f1", each_test=True)
    assert set(found["task"]) == {"kind"}
    assert set(found["metric"]) == {"kind_macro_f1"}
    assert set(fusionkit.results(folder, metric="mean", each_test=True)["task"]) == {"kind", "tags", "mean"}
    with pytest.raises(UsageError, match="unknown metric of these runs 'kind_macro_f1'"):
        fusionkit.results(folder, metric="kind_macro_f1", each_test=True)
    whole = fusionkit.results(folder, metric="kind_macro_f1")  # a row per run
    assert whole["score"].notna().all()
    with pytest.raises(UsageError, match="unknown metric of these runs 'macro_f1'"):
        fusionkit.results(folder, metric="macro_f1")


def test_train_is_what_a_task_learned_from(runs: dict[str, Path], places: dict[str, Path]) -> None:
    [found] = fusionkit.evaluate(runs["frozen"], data=places["kind"], split="train")
    assert found.notes == ["train of weather is what the head learned from: these scores are optimistic"]


def test_a_source_is_scored_by_the_tasks_whose_column_it_has_or_that_are_named(
    runs: dict[str, Path], stores: TaskStores, tmp_path: Path
) -> None:
    frame = stores.store_of["kind"]["test"].examples[["text", "kind"]].rename(columns={"kind": "gold"})
    frame.to_json(new := tmp_path / "new.jsonl", orient="records", lines=True)
    for method in ("frozen", "pals:6"):
        told = read_json(runs[method] / "run.json")["scores"]["test"]
        [found] = fusionkit.evaluate(runs[method], data=new, tasks=["kind"], labels={"kind": "gold"}, device="cpu")
        assert found.scores["accuracy"] == pytest.approx(told["kind_accuracy"])
    assert (found.to_dict()["heads"][0]["name"], found.to_dict()["heads"][0]["data"]) == ("kind", "new")
    with pytest.raises(UsageError, match="has no labels of these heads"):
        fusionkit.evaluate(runs["pals:6"], data=new, device="cpu")
    [words] = [stores.store_of["tags"]["test"].examples[["tokens", "tags"]]]
    words.to_json(tagged := tmp_path / "tagged.jsonl", orient="records", lines=True)
    [found] = fusionkit.evaluate(runs["pals:6"], data=str(tagged), device="cpu")
    assert found.scores["f1"] == pytest.approx(told["tags_f1"])
    assert {f"tags: {found.heads['tags'].column}"} == set(mistakes_frame([found])["column"])


def test_what_does_not_say_which_task_is_meant_is_refused(
    runs: dict[str, Path], places: dict[str, Path], weather: Store, tmp_path: Path
) -> None:
    both, run = [places["tags"], places["kind"]], runs["frozen"]
    with pytest.raises(UsageError, match="unknown task of these runs 'kin'"):
        fusionkit.evaluate(run, data=both, tasks=["kin"])
    with pytest.raises(UsageError, match="two data sets serve the task tags"):
        fusionkit.evaluate(run, data=[places["tags"], places["tags"]])
    with pytest.raises(UsageError, match="has no labels of these heads"):
        fusionkit.evaluate(run, data=both, tasks=["tags"])  # nothing of the second store is asked for
    (spec,) = expand(weather, fusions=["last"], epochs=(1,))
    fit(weather, [spec], RunsFolder(tmp_path))
    with pytest.raises(UsageError, match="only a run of several tasks over stores of their own"):
        fusionkit.evaluate(tmp_path, data=both)
    with pytest.raises(UsageError, match="--task chooses among several tasks"):
        fusionkit.evaluate(tmp_path, data=places["kind"], tasks=["kind"])


def test_of_tasks_of_one_column_the_name_of_the_data_tells_or_the_user(
    store: Store, model_folder: Path, tmp_path: Path
) -> None:
    rows = store["train"].examples[["tokens", "label"]]
    for place in ("more/train", "third", "more"):
        (file := tmp_path / f"{place}.jsonl").parent.mkdir(exist_ok=True)
        rows[:12].to_json(file, orient="records", lines=True)
    more = open_store(encoded(model_folder, tmp_path / "more", tmp_path / "more.store"))
    tasks = TaskStores([TaskChoice("towns", store, label="label"), TaskChoice("more", more, label="label")])
    (spec,) = expand(tasks, fusions=["last"], epochs=(1,), pool="cls")
    fit(tasks, [spec], RunsFolder(tmp_path / "runs"))
    of_tasks = ["towns", "more", "mean"]
    assert fusionkit.results(tmp_path / "runs", each_test=True)["task"].tolist() == of_tasks
    frame = frame_of(Comparison("c", ("s",)), {"s": RunsFolder(tmp_path / "runs")})
    assert frame["task"].tolist() == of_tasks
    table = markdown(tabulate(frame, by=("fusion", "task")), across="task")
    assert table.splitlines()[0] == "| fusion | scored on | towns accuracy | more accuracy | mean |"

    def scored(data: Path, **how: Any) -> list[str]:
        [found] = fusionkit.evaluate(tmp_path / "runs", data=data, device="cpu", **how)
        return [*found.heads]

    assert scored(tmp_path / "more.store") == ["more"]
    assert scored(tmp_path / "more.jsonl") == ["more"]
    assert scored(tmp_path / "third.jsonl", tasks=["towns", "more"]) == ["towns", "more"]
    with pytest.raises(UsageError, match=r"several tasks of the run .* read a column 'label'"):
        scored(tmp_path / "third.jsonl")


def test_runs_whose_tasks_of_one_name_learned_other_columns_stand_beside_each_other(
    store: Store, weather: Store, tmp_path: Path
) -> None:
    columns = {}
    for column in ("label", "tags"):
        tasks = TaskStores([TaskChoice("x", store, label=column), TaskChoice("kind", weather, label="kind")])
        (spec,) = expand(tasks, fusions=["last"], epochs=(1,), pool="cls")
        fit(tasks, [spec], RunsFolder(tmp_path))
        columns[spec.digest] = column
    found = fusionkit.evaluate(tmp_path, data=Path(str(store.path)))
    assert {each.run.digest: each.heads["x"].column for each in found} == columns


def test_a_run_and_its_export_are_scored_beside_each_other(
    runs: dict[str, Path], places: dict[str, Path], model_folder: Path, tmp_path: Path
) -> None:
    export_run(runs["frozen"], tmp_path / "head")
    both = (runs["frozen"], tmp_path / "head")
    for data in ([places["kind"]], [*places.values()]):
        one, other = fusionkit.evaluate(*both, data=data, encoder=str(model_folder))
        assert (one.run.folder.name, other.run.folder.name) == (runs["frozen"].name, "head")
        assert one.scores == other.scores


def test_the_command_takes_several_stores_and_prints_a_line_a_task_and_their_mean(
    runs: dict[str, Path], places: dict[str, Path], tmp_path: Path
) -> None:
    given = [str(runs["houlsby:4"]), str(places["tags"]), str(places["kind"])]
    done = CliRunner().invoke(command, [*given, "--errors", str(tmp_path / "wrong.csv")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "towns, test: 16 examples; weather, test: 6 examples" in done.output
    rows = [
        line.split() for line in done.output.splitlines() if line.split()[:1] in (["tags"], ["kind"], ["tags+kind"])
    ]
    assert [(row[0], row[1]) for row in rows[:3]] == [("kind", "6"), ("tags", "16"), ("tags+kind", "22")]
    assert "kind: kind: class" in done.output
    told = read_json(runs["houlsby:4"] / "run.json")["scores"]["test"]
    assert f"{100 * told['mean']:.1f}" in rows[2]
    assert {*pd.read_csv(tmp_path / "wrong.csv")["column"]} <= {"tags: tags", "kind: kind"}
    done = CliRunner().invoke(command, [*given, "--task", "kind", "--json"], catch_exceptions=True)
    assert isinstance(done.exception, UsageError)
    done = CliRunner().invoke(command, [given[0], given[2], "--task", "kind", "--json"], catch_exceptions=False)
    (found,) = json.loads(done.stdout)
    assert [head["examples"] for head in found["heads"]] == [6]
    with pytest.raises(UsageError, match="kept when they are trained"):
        CliRunner().invoke(command, [*given, "--keep"], catch_exceptions=False)
    with pytest.raises(UsageError, match="no run is given"):
        CliRunner().invoke(command, given[1:], catch_exceptions=False)


def test_the_report_looks_into_each_task(runs: dict[str, Path], places: dict[str, Path]) -> None:
    folder = runs["pals:6"].parent
    study = read_report_data([folder], list(places.values()))
    assert [*dict.fromkeys(study.frame["task_name"])] == ["tags", "kind", "mean"]
    predictions = all_predictions(study)
    assert {(run.task, run.digest) for run in predictions.runs} == {
        (task, run.name) for task in ("tags", "kind") for run in runs.values()
    }
    assert not predictions.left_out
    for run in predictions.runs:
        told = read_json(folder / run.digest / "run.json")["scores"]["test"]
        right = [one == other for one, other in zip(run.gold, run.predicted, strict=True)]
        if run.task == "kind":
            assert np.mean(right) == pytest.approx(told["kind_accuracy"])
            assert (run.kind, run.split, len(run.gold)) == ("class", "test", 6)
        else:
            words = [one == other for gold, said in zip(run.gold, run.predicted, strict=True)
                     for one, other in zip(gold, said, strict=True)]  # fmt: skip
            assert np.mean(words) == pytest.approx(told["tags_word_accuracy"])
            assert run.tokens[0] == list(study.stores[first_store(study, run)]["test"].examples["tokens"][0])
    panel = inside_of(predictions.runs)
    scores = {(one["task"], one["method"]): one["score"] for one in panel["looks"]}
    frozen = read_json(runs["frozen"] / "run.json")["scores"]["test"]
    assert scores["kind", "linear"] == f"accuracy {100 * frozen['kind_accuracy']:.1f}"
    assert scores["tags", "linear"] == f"F1 {100 * frozen['tags_f1']:.1f}"
    weights = FIGURES["layer-weights"].data(study)
    assert weights is not None
    assert set(weights["task"]) == {"tags", "kind"}
    curves = FIGURES["score-by-epoch"].data(study)
    assert curves is not None
    assert set(curves["task"]) == {"mean (mean, %)"}
    steps = FIGURES["loss-by-step"].data(study)
    assert steps is not None
    assert sorted(set(steps["step"])) == [8, 16, 24]  # of 40 and 19 examples, eight a step


def first_store(study: Any, run: Any) -> str:
    stores: str = study.records[run.digest]["spec"]["task_stores"]
    return stores.split(",")[0]
