"""From a corpus to a table of results, every command printing what the next needs."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.encode.batching import TOKENS
from fusionkit.runs.record import COSTS
from fusionkit.store.manifest import read_plan

Command = Callable[..., Any]
FIT_KEYS = {
    "digest", "data_identity",
    "store", "task", "label", "fusion", "head", "pool", "shots", "data_seed", "init_seed", "lr", "weight_decay",
    "dropout", "epochs", "batch_size", "schedule", "status", "data", "encoder", "rows", "metric", "score",
    "validation_score", "best_epoch", "fusion_parameters", "head_parameters", "encoder_parameters", "temperature",
    "largest_weight", "fusion_layers", "seconds", *COSTS, "optimizer", "warmup", "clip_norm", "label_smoothing",
    "class_weights", "patience", "sides", "joint_fusion", "mix", "evaluate_on", "init_from", "init_part", "freeze",
    "trained_parameters", "evaluated", "init_data", "draw", "draw_ids", "validate_on", "order",
    "validate_every", "compute_dtype", "max_steps", "steps", "method", "encoder_lr", "layer_decay", "encoder_dropout",
    "accumulate", "checkpointing", "from_layer", "scored_on", "control", "mdl",
    "task_stores", "task_batches", "sampling", "steps_per_epoch", "choose_epoch", "parameters_per_task",
    "total_parameters", "encoder_multiple",
}  # fmt: skip


@pytest.fixture(scope="module")
def fitted(fusionkit: Command, store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder of six runs, two fusions by three seeds, and what ``fit --json`` printed."""
    runs = tmp_path_factory.mktemp("fitted") / "runs"
    options = ["--task", "classification", "--fusion", "last", "--fusion", "linear", "--seeds", 3, "--epochs", 3]
    options += ["--floor", "none"]
    return runs, fusionkit("fit", store, "--out", runs, *options, "--lr", "0.005", "--json")


def test_encode_reports_the_store_that_it_made(encoded: tuple[Path, Any]) -> None:
    store, done = encoded
    assert done.code == 0
    report = done.json
    assert report["outcome"] == "encoded"
    assert report["path"] == str(store)
    assert {name: split["examples"] for name, split in report["splits"].items()} == {
        "train": 80, "validation": 20, "test": 30
    }  # fmt: skip
    assert (report["rows"], report["layers"], report["hidden"], report["dtype"]) == (
        "tokens",
        [0, 3, 6],
        384,
        "float16",
    )
    assert report["rows_total"] == sum(split["tokens"] for split in report["splits"].values())
    assert (report["columns"]["tokens"], report["columns"]["tags"]) == ("tokens", ["slots"])
    assert report["bytes"] == sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    assert report["bytes"] > report["rows_total"] * 3 * 384 * 2
    assert "rows of tokens, because there are tags and labels (intent); --rows words is enough for tags\n" in done.err
    assert "columns: tokens = tokens" in done.err
    assert "encoding:" in done.err


def test_encoding_again_finds_nothing_to_do(fusionkit: Command, store: Path, corpus: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    done = fusionkit("encode", corpus, "--out", store, "--layers", "0,3,6")
    nobody = "tcp://127.0.0.1:1"  # where no scheduler is: for nothing to do, none is asked
    elsewhere = fusionkit("encode", corpus, "--out", store, "--layers", "0,3,6", "--cluster", nobody)
    assert (elsewhere.code, elsewhere.out) == (done.code, done.out)
    assert (done.code, done.out) == (0, f"{store} is complete already: nothing to do\n")
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_the_folder_one_is_in_can_be_the_store(
    fusionkit: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = fusionkit("encode", corpus, "--out", ".", "--layers", "6", "--rows", "mean", "--json")
    assert done.code == 0, done.err
    assert (done.json["outcome"], done.json["rows_total"]) == ("encoded", 130)
    monkeypatch.chdir(tmp_path)
    assert fusionkit("verify", "here").code == 0


def test_a_plan_for_gpus_is_made_without_one(fusionkit: Command, corpus: Path, tmp_path: Path) -> None:
    """Also for a precision that only a GPU has."""
    words = ("encode", corpus, "--out", tmp_path / "s", "--device", "cuda", "--compute-dtype", "tf32")
    done = fusionkit(*words, "--parts", "0/2", "--json")
    assert (done.code, done.json["outcome"]) == (0, "share")
    assert read_plan(tmp_path / "s")["batch_tokens"] == TOKENS["cuda"]


def test_info_shows_what_encode_reported(fusionkit: Command, encoded: tuple[Path, Any]) -> None:
    store, made = encoded
    done = fusionkit("info", store, "--json")
    assert done.code == 0
    assert done.json.items() <= made.json.items()
    assert done.err == ""
    text = fusionkit("info", store).out
    assert "minilm" in text
    assert made.json["digest"] in text
    assert len([line for line in text.splitlines() if line.startswith(("train", "validation", "test"))]) == 3


def test_fit_prints_a_record_a_run(fitted: tuple[Path, Any]) -> None:
    runs, done = fitted
    assert done.code == 0
    records = done.json
    assert [(r["fusion"], r["data_seed"]) for r in records] == [(f, s) for f in ("last", "linear") for s in range(3)]
    for record in records:
        assert set(record) == FIT_KEYS
        assert record["task"] == "classification"
        assert record["label"] == "intent"
        assert (record["head"], record["pool"], record["lr"], record["shots"]) == ("classifier", "mean", 0.005, None)
        assert (record["status"], record["metric"], record["init_seed"]) == (
            "finished",
            "accuracy",
            record["data_seed"],
        )
        assert record["score"] * 30 == pytest.approx(round(record["score"] * 30), abs=1e-9)  # of 30 test examples
        assert record["fusion_parameters"] == {"last": 0, "linear": 3 + 1}[record["fusion"]]
        classes = record["head_parameters"] - (384 * 256 + 256) - (256 * 256 + 256)
        assert classes % 257 == 0
        assert record["encoder_parameters"] == 22_713_216
        assert record["seconds"] > 0
    assert len(list(runs.glob("*/weights.safetensors"))) == 6


def test_progress_goes_to_standard_error(fitted: tuple[Path, Any]) -> None:
    assert "fitting 6 runs: 18 epochs" in fitted[1].err


def test_fitting_again_prints_the_same_and_trains_nothing(fusionkit: Command, store: Path, fitted: Any) -> None:
    runs, first = fitted
    options = ["--task", "classification", "--fusion", "last", "--fusion", "linear", "--seeds", 3, "--epochs", 3]
    options += ["--floor", "none"]
    again = fusionkit("fit", store, "--out", runs, *options, "--lr", "0.005", "--json")
    assert (again.code, again.out) == (0, first.out)
    assert again.err.splitlines()[1:] == ["6 of 6 runs there already"]
    nobody = fusionkit(
        "fit", store, "--out", runs, *options, "--lr", "0.005", "--json", "--cluster", "tcp://127.0.0.1:1"
    )
    assert (nobody.code, nobody.out) == (0, first.out)  # there is nothing to ask a cluster for


def test_results_are_the_means_of_the_runs(fusionkit: Command, fitted: Any) -> None:
    runs, done = fitted
    table = fusionkit("results", runs, "--json")
    assert table.code == 0
    assert table.out == fusionkit("results", runs, "--format", "json").out
    wanted = {f: [r["score"] for r in done.json if r["fusion"] == f] for f in ("last", "linear")}
    for row in table.json:
        scores = wanted[row["fusion"]]
        assert row["mean"] == pytest.approx(sum(scores) / 3)
        assert (row["runs"], row["failed"], row["metric"]) == (3, 0, "accuracy")
    assert [row["fusion"] for row in table.json] == ["last", "linear"]


def test_results_as_csv_hold_the_same_numbers(fusionkit: Command, fitted: Any) -> None:
    runs, _ = fitted
    rows = list(csv.DictReader(io.StringIO(fusionkit("results", runs, "--format", "csv").out)))
    as_json = fusionkit("results", runs, "--format", "json").json
    assert len(rows) == len(as_json) == 2
    for ours, theirs in zip(rows, as_json, strict=True):
        assert set(ours) == set(theirs)
        assert float(ours["mean"]) == pytest.approx(theirs["mean"])
        assert float(ours["high"]) == pytest.approx(theirs["high"])


def test_results_by_columns_are_grouped_by_them(fusionkit: Command, fitted: Any) -> None:
    by = ["results", fitted[0], "--by", "data_seed", "--by", "task", "--json"]
    averaged = fusionkit(*by, "--average", "fusion").json
    assert [(row["data_seed"], row["task"], row["runs"]) for row in averaged] == [
        (k, "classification", 2) for k in range(3)
    ]
    rows = fusionkit(*by).json  # the two fusions are no repetitions of each other: a column tells them apart
    assert sorted((row["data_seed"], row["fusion"], row["runs"]) for row in rows) == [
        (k, fusion, 1) for k in range(3) for fusion in ("last", "linear")
    ]


def test_results_as_a_table_are_in_percent(fusionkit: Command, fitted: Any) -> None:
    runs, _ = fitted
    text = fusionkit("results", runs).out
    for row in fusionkit("results", runs, "--json").json:
        assert f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f}" in text
    assert "task classification" in text.splitlines()[0]  # what all rows share stands above them


def test_info_of_a_folder_of_runs_counts_them(fusionkit: Command, fitted: Any) -> None:
    found = fusionkit("info", fitted[0], "--json").json
    assert (found["runs"], found["failed"], found["fusion"], found["head"]) == (
        6,
        0,
        ["last", "linear"],
        ["classifier"],
    )
    assert "6 runs, 0 failed" in fusionkit("info", fitted[0]).out


def test_a_tagger_is_fitted_over_the_same_store(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    options = ["--label", "slots", "--head", "crf", "--fusion", "layer:3", "--shots", 2, "--epochs", 1]
    runs = tmp_path / "my runs"
    done = fusionkit("fit", store, "--out", runs, *options)
    assert done.code == 0
    assert "layer:3" in done.out
    assert f"kept in {runs}; `fusionkit results '{runs}'` shows all of it" in done.out


def test_variants_of_a_fusion_stand_apart_in_the_table(fusionkit: Command, store: Path, tmp_path: Path) -> None:
    fusions = ["linear", "linear:norm=token,gamma=no", "dwatt", "dwatt:scale=yes", "extra-layers:1"]
    options: list[Any] = [part for fusion in fusions for part in ("--fusion", fusion)]
    options += ["--label", "slots", "--epochs", 1, "--shots", 2, "--fusion-layers", "all", "--fusion-layers", "3,6"]
    done = fusionkit("fit", store, "--out", tmp_path / "runs", *options)
    assert done.code == 0, done.err
    written = ["linear", "linear:gamma=no,norm=token", "dwatt", "dwatt:scale=yes"]
    rows = [line.split()[:2] for line in done.out.splitlines() if "," in line]
    # The new layers stand on the last of those chosen: one run serves both choices.
    expected = [[fusion, layers] for fusion in written for layers in ("0,3,6", "3,6")] + [["extra-layers:1", "6"]]
    assert [row for row in rows if row[0] in (*written, "extra-layers:1")] == expected
    found = fusionkit("results", tmp_path / "runs", "--json").json
    # Rows stand in the order in which runs were kept, which two processes do not agree on.
    parameters = {(row["fusion"], row["fusion_layers"]): row["parameters"] for row in found}
    assert sorted(map(list, parameters)) == sorted(expected)
    assert len(found) == len(expected)
    more = parameters["extra-layers:1", "6"] - parameters["linear", "0,3,6"]
    assert more == (12 * 384**2 + 13 * 384) - (3 + 1)


def test_a_label_that_was_guessed_among_several_is_said_before_training(
    fusionkit: Command, write_source: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"text": f"number {k}", "label": f"l{k % 2}", "topic": f"t{k % 3}"} for k in range(24)]
    store, runs = tmp_path / "topics.store", tmp_path / "runs"
    note = "learns label; also there: topic (--label chooses)"
    encoded = fusionkit("encode", write_source(train=rows), "--out", store, "--layers", 6, "--rows", "mean")
    assert (encoded.code, "rows of tokens" in encoded.err) == (0, False)
    options = ("fit", store, "--out", runs, "--fusion", "last", "--epochs", 1, "--floor", "none")
    planned, done = fusionkit(*options, "--dry-run"), fusionkit(*options, "--seeds", 2)
    assert (planned.code, done.code) == (0, 0), done.err
    assert planned.err.splitlines().count(note) == 1
    assert done.err.splitlines()[1] == note
    assert done.err.count(note) == 1
    assert note not in fusionkit(*options, "--seeds", 2).err  # nothing is left to learn
    assert note not in fusionkit(*options, "--label", "topic").err


def test_a_pipe_gets_results_alone(store: Path, tmp_path: Path) -> None:
    """In a process of its own: exit code, standard output for `jq`, standard error for people."""
    command = [sys.executable, "-m", "fusionkit", "fit", str(store), "--out", str(tmp_path), "--label", "intent"]
    command += ["--json", "--fusion", "last", "--epochs", "1", "--floor", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)) == 1
    assert done.stderr == f"training over {store}, into {tmp_path}\nfitting 1 run: 1 epoch\n"
