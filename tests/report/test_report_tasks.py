"""Pages of other runs than tags and labels: two texts each, numbers, both columns at once, several lengths."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionkit.report.predictions import all_predictions
from fusionkit.report.render import draw
from fusionkit.report.report_data import read_report_data
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec

Command = Callable[..., str]
FIRST = ["rain in Oslo", "snow over Bergen", "a bowl of soup", "two tickets to Rome"]
SECOND = ["it rains", "it snows", "lunch"]


@pytest.fixture(scope="module")
def pairs(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of a label and of a number of two texts, each encoded for itself, and their page."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "two").mkdir()
    for name, count in (("train", 24), ("validation", 8), ("test", 9)):
        rows = [
            {"sentence1": FIRST[k % 4], "sentence2": SECOND[k % 3], "label": "same" if k % 4 == k % 3 else "other",
             "score": float(5 if k % 4 == k % 3 else k % 2)}
            for k in range(count)
        ]  # fmt: skip
        (folder / "two" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    store, runs = folder / "two.store", folder / "runs"
    command("encode", folder / "two", "--out", store, "--rows", "tokens", "--layers", "0,6", "--pair-as", "two")
    options = ["--pool", "mean", "--fusion", "last", "--fusion", "attention", "--epochs", 2, "--seeds", 2,
               "--out", runs]  # fmt: skip
    command("fit", store, "--label", "label", *options)
    command("fit", store, "--task", "regression", "--label", "score", *options)
    command("report", runs, "--out", folder / "report.html")
    return folder


def test_a_page_of_two_texts_shows_both_of_them(open_page: Callable[..., Any], pairs: Path) -> None:
    page = open_page(place=pairs / "report.html")
    assert "8 heads" in page.inner_text("#lead")
    found = page.inner_text("#inside-body")
    assert any(first in found for first in FIRST)
    assert any(second in found for second in SECOND)
    heat = page.inner_text("#inside-body table.heat").split()
    assert "rain" in heat or "snow" in heat or "bowl" in heat or "tickets" in heat
    assert "rains" in heat or "##s" in heat or "lunch" in heat or "snows" in heat


def test_a_number_is_looked_into_without_a_confusion(pairs: Path) -> None:
    study = read_report_data([pairs / "runs"])
    predictions = all_predictions(study)
    kinds = {run.column: run.kind for run in predictions.runs}
    assert kinds == {"label": "class", "score": "number"}
    assert predictions.left_out == []
    for run in predictions.runs:
        assert run.whole is not None
        assert (run.split, len(run.gold), len(run.predicted)) == ("test", 9, 9)
        assert all(any(text in whole for text in FIRST) for whole in run.whole)
        assert all(any(text in whole for text in SECOND) for whole in run.whole)
        if run.weights is not None:
            np.testing.assert_allclose(run.weights.sum(1), 1, rtol=1e-5)
            assert len(run.weights) == run.offsets[-1] == sum(map(len, run.tokens))
    (drawn,) = draw(study, ["confusion"])
    assert not drawn.data["task"].str.contains("score").any()


def test_a_joint_run_is_looked_into_by_each_of_its_columns(
    open_page: Callable[..., Any], command: Command, made: Any, tmp_path: Path
) -> None:
    runs, page = tmp_path / "runs", tmp_path / "report.html"
    options = ["--label", "intent,slots", "--head", "classifier+tagger", "--pool", "mean", "--epochs", 2]
    command("fit", made.store, "--task", "joint", *options, "--fusion", "attention", "--out", runs)
    command("report", runs, "--store", made.store, "--out", page)
    predictions = all_predictions(read_report_data([runs], [made.store]))
    assert [(run.column, run.kind) for run in predictions.runs] == [("intent", "class"), ("slots", "spans")]
    assert predictions.left_out == []
    shown = open_page(place=page)
    told = shown.locator("#inside-body select >> nth=0").locator("option").all_inner_texts()
    assert told == ["desk-de · intent,slots → intent", "desk-de · intent,slots → slots"]


def test_two_data_sets_of_one_name_are_two_tasks(tmp_path: Path) -> None:
    """Stores of one data set are settings of a task, of which validation chooses; two data sets are two tasks."""
    scored = {"a" * 16: ("sst2", 0.9), "b" * 15 + "1": ("cola", 0.6), "b" * 15 + "2": ("cola", 0.5)}
    for store, (data, score) in scored.items():
        spec = RunSpec(store=store, task="classification", label="label", head="classifier", fusion="last")
        told = {"status": "finished", "data": "glue", "data_identity": data, "encoder": "e", "rows": "mean"}
        scores = {"score": score, "validation_score": score, "scores": {"validation": {"accuracy": score}}}
        own = {"metric": "accuracy", "layers": [6], "evaluated": "glue", "sides": 1, "init_data": None, "seconds": 1.0}
        RunsFolder(tmp_path).write(spec, {"spec": spec.to_dict(), **told, **scores, **own}, {})
    chosen = read_report_data([tmp_path]).chosen
    assert dict(zip(chosen["task_name"], chosen["score"], strict=True)) == {
        "glue · label · store aaaaaaaa": 0.9, "glue · label · store bbbbbbbb": 0.6
    }  # fmt: skip


def test_lengths_of_training_are_told_apart(tmp_path: Path) -> None:
    """Each shows its rate with the best mean on validation."""
    rng, records = np.random.default_rng(0), list[dict[str, Any]]()
    grid = itertools.product(("last", "linear"), (5, 30), (1, 2), (1e-3, 1e-2), (0, 1))
    for fusion, epochs, shots, rate, seed in grid:
        spec = RunSpec(
            store="s", task="tagging", label="slots", head="tagger", fusion=fusion, epochs=epochs, shots=shots, lr=rate,
            data_seed=seed, init_seed=seed,
        )  # fmt: skip
        told = {"status": "finished", "data": "desk-de", "encoder": "e", "rows": "words", "metric": "f1", "layers": [6]}
        score, validation = rng.random(2).tolist()
        scores = {"score": score, "validation_score": validation, "scores": {"validation": {"f1": validation}}}
        own = {"evaluated": "desk-de", "sides": 1, "init_data": None, "seconds": 1.0}
        records.append({"spec": spec.to_dict(), **told, **scores, **own})
        RunsFolder(tmp_path).write(spec, records[-1], {})
        os.utime(tmp_path / spec.digest / "run.json", (len(records), len(records)))  # they are read in this order
    (drawn,) = draw(read_report_data([tmp_path]), ["epochs"])
    found = drawn.data
    assert sorted(set(found["epochs"])) == [5, 30]
    assert list(dict.fromkeys(found["task"])) == [
        f"desk-de · slots · {shots} a class · {split} (F1, %)" for shots in (1, 2) for split in ("test", "validation")
    ]
    assert len(found) == 2 * 2 * 2 * 2
    kept = {"test": "score", "validation": "validation_score"}
    for row in found.to_dict(orient="records"):
        mine = [
            one for one in records
            if (one["spec"]["fusion"], one["spec"]["epochs"], str(one["spec"]["shots"]))
            == (row["method"], row["epochs"], row["shots"])
        ]  # fmt: skip
        rates = [[one for one in mine if one["spec"]["lr"] == rate] for rate in (1e-3, 1e-2)]
        best = max(rates, key=lambda same: np.mean([one["validation_score"] for one in same]))
        assert row["runs"] == 2
        assert row["score"] == pytest.approx(100 * np.mean([one[kept[row["split"]]] for one in best]))
