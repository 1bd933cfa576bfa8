"""Sweeps: which runs there are, in which order, and that each is trained once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors.torch import load_file

from fusionkit.errors import StoreError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.specs import RunSpec
from fusionkit.store import Store


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def files(runs: Path) -> dict[str, int]:
    """When each record and each file of weights was written."""
    return {str(path.relative_to(runs)): path.stat().st_mtime_ns for path in runs.glob("*/*")}


def test_a_sweep_is_the_product_of_its_choices_with_seeds_innermost(store: Store) -> None:
    choices: dict[str, Any] = {
        "fusions": ("linear", "layer:2"), "shots": (None, 1), "lrs": (1e-3, 1e-2), "epochs": (2, 3),
        "batch_sizes": (4, 8),
    }  # fmt: skip
    specs = expand(store, task="tagging", head="crf", seeds=3, dropout=0.1, schedule="constant", **choices)
    product = itertools.product(*choices.values(), range(3))
    assert [(s.fusion, s.shots, s.lr, s.epochs, s.batch_size, s.data_seed) for s in specs] == list(product)
    assert len(specs) == len({spec.digest for spec in specs}) == 2 * 2 * 2 * 2 * 2 * 3
    assert all(spec.init_seed == spec.data_seed for spec in specs)
    shared = {(s.store, s.task, s.label, s.head, s.pool, s.dropout, s.weight_decay, s.schedule) for s in specs}
    assert shared == {(store.digest, "tagging", "tags", "crf", None, 0.1, 0.0, "constant")}


def test_a_choice_given_twice_is_one_run(store: Store) -> None:
    once = expand(store, task="tagging", fusions=("last",), lrs=(1e-3, 1e-2), seeds=2)
    twice = expand(store, task="tagging", fusions=("last", "last"), lrs=(1e-3, 1e-2, 1e-3), shots=(None, None), seeds=2)
    assert twice == once
    assert len(once) == 4


@pytest.mark.parametrize(
    ("choices", "what", "remedy"),
    [
        ({"fusions": ("atention",)}, "unknown fusion 'atention'", "did you mean 'attention'?"),
        ({"fusions": ("layer:9",)}, "this layer does not exist", None),
        ({"fusions": ("last",), "head": "taggr"}, "unknown head for tagging 'taggr'", "did you mean 'tagger'?"),
        ({"fusions": ("last",), "head": "classifier"}, "unknown head for tagging 'classifier'", None),
        ({"fusions": ("last",), "shots": (0,)}, "shots is out of range", None),
        ({"fusions": ("last",), "pool": "mean"}, "--pool mean has nothing to pool", "leave --pool out"),
    ],
)
def test_a_sweep_with_a_wrong_choice_is_refused_as_a_whole(
    store: Store, choices: dict[str, Any], what: str, remedy: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        expand(store, task="tagging", **choices)
    assert caught.value.what == what
    assert remedy is None or caught.value.remedy == remedy


def test_a_second_fit_trains_nothing_and_returns_the_same_records(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", fusions=("last", "linear"), seeds=2, epochs=(1,))
    first = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    before = files(tmp_path / "runs")
    again = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(first))
    assert files(tmp_path / "runs") == before
    assert len(before) == 12  # of each run weights, answers and record
    assert watch.begun == [(4, 4), (0, 0)]
    assert 0 < watch.done == pytest.approx(watch.foretold)
    assert watch.epochs == len(watch.ended) == 4
    assert watch.said[-1] == "4 of 4 runs there already"


def test_a_table_that_a_killed_sweep_left_out_is_made_by_the_next(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", fusions=("last", "linear"), epochs=(1,))
    fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    (tmp_path / "runs" / "results.parquet").unlink()
    fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert pd.read_parquet(tmp_path / "runs" / "results.parquet")["fusion"].tolist() == ["last", "linear"]


def test_only_what_is_missing_is_trained(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", fusions=("last", "linear", "concat"), epochs=(1,))
    fit(store, specs[1:2], RunsFolder(tmp_path / "runs"), watch)
    before = files(tmp_path / "runs")
    records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert [record["spec"]["fusion"] for record in records] == ["last", "linear", "concat"]
    assert [record["spec"]["fusion"] for record in watch.ended] == ["linear", "last", "concat"]
    assert before.items() <= files(tmp_path / "runs").items()


def test_the_same_runs_elsewhere_leave_the_same_record_and_weights(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", head="crf", fusions=("attention",), seeds=2, epochs=(2,), dropout=0.3)
    for place in ("one", "other"):
        fit(store, specs, RunsFolder(tmp_path / place), watch)
    for spec in specs:
        one, other = (tmp_path / place / spec.digest for place in ("one", "other"))
        assert (one / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
        records = [json.loads((folder / "run.json").read_text()) for folder in (one, other)]
        assert all(record.pop("seconds") > record.pop("epoch_seconds")[-1] > 0 for record in records)
        assert all(record.pop("seconds_alone") > 0 < record.pop("peak_memory") for record in records)
        assert records[0] == records[1]


def test_a_run_that_diverges_is_kept_as_failed_and_the_sweep_goes_on(store: Store, tmp_path: Path, watch: Any) -> None:
    sound = expand(store, task="tagging", fusions=("last",), epochs=(1,))[0]
    wild = replace(sound, lr=99.0, weight_decay=50.0, epochs=40)
    runs = RunsFolder(tmp_path / "runs")
    records = fit(store, [wild, sound], runs, watch)
    assert [record["status"] for record in records] == ["failed", "finished"]
    assert "no longer finite" in records[0]["error"]
    assert records[0]["score"] is None
    assert not (tmp_path / "runs" / wild.digest / "weights.safetensors").exists()
    assert fit(store, [wild, sound], runs, watch) == json.loads(json.dumps(records))
    assert len(watch.ended) == 2  # it would fail the same way again


def test_a_draw_too_large_is_refused_before_any_run(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", fusions=("last",), shots=(1, 500), epochs=(1,))
    with pytest.raises(UsageError, match="the training split is smaller than the draw") as caught:
        fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert caught.value.received == "500 shots × 2 classes = 1000"  # of entities, not of tags
    assert not (tmp_path / "runs").exists()


def test_a_damaged_record_of_another_sweep_is_refused_before_any_run(store: Store, tmp_path: Path, watch: Any) -> None:
    runs = tmp_path / "runs"
    (runs / "0123456789abcdef").mkdir(parents=True)
    (runs / "0123456789abcdef" / "run.json").write_text('{"spec": ')
    with pytest.raises(StoreError, match=r"0123456789abcdef/run\.json is damaged"):
        fit(store, expand(store, task="tagging", fusions=("last",), epochs=(1,)), RunsFolder(runs), watch)
    assert watch.begun == []
    assert [path.name for path in runs.iterdir()] == ["0123456789abcdef"]


def test_the_weights_on_disk_are_those_of_the_parts(store: Store, tmp_path: Path, watch: Any) -> None:
    specs = expand(store, task="tagging", head="linear-tagger", fusions=("linear",), epochs=(1,))
    record = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)[0]
    weights = load_file(tmp_path / "runs" / specs[0].digest / "weights.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    assert shapes == {
        "fusion.weight": [7], "fusion.gamma": [], "head.score.1.weight": [5, 384], "head.score.1.bias": [5]
    }  # fmt: skip
    assert (record["fusion_parameters"], record["head_parameters"]) == (8, 5 * 384 + 5)
    assert record["layers"] == [0, 1, 2, 3, 4, 5, 6]
    assert record["layer_weights"] == pytest.approx(weights["fusion.weight"].softmax(0).tolist(), abs=1e-6)


@pytest.mark.soak("kills")
def test_a_killed_sweep_loses_no_run_that_had_ended(store: Store, tmp_path: Path, watch: Any) -> None:
    runs, seeds, epochs = tmp_path / "runs", 8, 25
    command = [sys.executable, "-m", "fusionkit", "fit", str(store.path), "--out", str(runs), "--task", "tagging"]
    command += ["--fusion", "last", "--seeds", str(seeds), "--epochs", str(epochs)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(runs.glob("*/run.json"))) < 2:
            assert process.poll() is None, "the sweep ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    ended = [name for name in files(runs) if name.endswith("run.json")]
    assert 2 <= len(ended) < seeds
    before = {name: time for name, time in files(runs).items() if f"{name.split('/')[0]}/run.json" in ended}
    specs: list[RunSpec] = expand(store, task="tagging", fusions=("last",), seeds=seeds, epochs=(epochs,))
    assert {name.split("/")[0] for name in ended} == {spec.digest for spec in specs[: len(ended)]}
    records = fit(store, specs, RunsFolder(runs), watch)
    assert [record["spec"]["data_seed"] for record in records] == list(range(seeds))
    assert before.items() <= files(runs).items()
    assert len(watch.ended) == seeds - len(ended)
