"""A run in training that is killed at any moment, in a save too, goes on and ends with the same bytes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.errors import FusionkitError, StoreError, UsageError
from fusionkit.fit import FitProgress, RunsFolder, expand, fit
from fusionkit.fit.executor.through_encoder import StateFile
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tuning import trainer
from fusionkit.tuning.state import SavedState, read_state, write_state

KILLER = Path(__file__).with_name("killer.py")
ROOT = Path(__file__).parents[2]
STEPS = ROOT / "tests" / "faults" / "steps.py"
TIMES = ("seconds", "epoch_seconds", "seconds_alone", "peak_memory")


def kept(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, bytes]]]:
    """Of each run there the record, but for its times, and the other files."""
    found = {}
    for path in folder.glob("*/run.json"):
        record = {name: value for name, value in json.loads(path.read_text()).items() if name not in TIMES}
        files = {file.name: file.read_bytes() for file in path.parent.iterdir() if file != path}
        found[path.parent.name] = record, files
    return found


def assert_the_same(stores: Iterable[Store], specs: list[RunSpec], folder: Path, kills: int, seed: int) -> None:
    """Kill each run so often, and compare what it comes to with what it is undisturbed."""
    (folder / "specs.json").write_text(json.dumps([spec.to_dict() for spec in specs]))
    given = map(str, (",".join(str(store.path) for store in stores), folder, kills, seed, folder / "specs.json"))
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(KILLER), *given], capture_output=True, text=True, check=False, env=ours
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for number, steps in enumerate(found):
        assert len(steps) == kills
        assert all(before < after for before, after in pairwise([0, *steps]))  # each went on from the one before
        one, other = kept(folder / str(number) / "whole"), kept(folder / str(number) / "killed")
        assert one == other
        ((_, files),) = one.values()
        assert set(files) == {"answers.safetensors", "delta.safetensors", "weights.safetensors"}
    assert len(found) == len(specs)


CHOICES: dict[str, dict[str, Any]] = {
    "float32": {"methods": ["full"], "dropout": 0.1, "fusions": ["attention"]},
    "bfloat16": {"methods": ["houlsby:8,layers=-1:"], "compute_dtype": "bfloat16", "dropout": 0.1},  # from layer 2
    "phases": {"methods": ["diff-prune"], "encoder_dropout": 0.2, "accumulate": 2},
}


Specs = Callable[..., list[RunSpec]]


def chosen(store: Store, specs: Specs, names: Iterable[str], epochs: int) -> list[RunSpec]:
    return [spec for name in names for spec in specs(store, **{**CHOICES[name], "epochs": (epochs,)})]


def test_three_kills_leave_the_same_bytes(store: Store, specs: Specs, tmp_path: Path) -> None:
    assert_the_same([store], chosen(store, specs, ("float32", "bfloat16"), 8), tmp_path, 3, seed=1)


@pytest.mark.soak("kills")
def test_ten_kills_leave_the_same_bytes(store: Store, specs: Specs, tmp_path: Path) -> None:
    assert_the_same([store], chosen(store, specs, CHOICES, 40), tmp_path, 10, seed=2)


@pytest.mark.soak("kills")
def test_ten_kills_of_several_tasks_leave_the_same_bytes(store: Store, weather: Store, tmp_path: Path) -> None:
    tasks = [TaskChoice("tags", store, label="tags"), TaskChoice("kind", weather)]
    usual: dict[str, Any] = {"fusions": ["last"], "epochs": (30,), "batch_sizes": (8,), "dropout": 0.1}
    runs = [
        *expand(TaskStores(tasks), methods=["pals:6"], sampling="annealed", **usual),
        *expand(TaskStores(tasks), methods=["full"], sampling="uniform", choose_epoch="each", **usual),
    ]
    assert_the_same([store, weather], runs, tmp_path, 10, seed=3)


@pytest.mark.soak("kills")
def test_a_kill_before_any_step_on_the_disk_loses_nothing(store: Store, tmp_path: Path) -> None:
    """Each save has several such steps; the run saves its state after every second of its ten steps."""
    (tmp_path / "before").mkdir()
    words = f"fit {store.path} --out runs --label tags --head linear-tagger --fusion last --method bitfit --epochs 2"
    command = [*words.split(), "--batch-size", "8", "--encoder-dropout", "0.1", "--save-every", "2", "--floor", "none"]
    (tmp_path / "commands.json").write_text(json.dumps({"fit": command}))
    given = [str(STEPS), str(tmp_path), "1", str(tmp_path / "commands.json"), "fusionkit.tuning.trainer"]
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *given], capture_output=True, text=True, check=False, env=ours)
    assert done.returncode == 0, done.stderr
    killed, whole = json.loads(done.stdout)["fit"], kept(tmp_path / "fit-whole" / "runs")
    assert len(killed) > 5 * 3
    ((record, _),) = whole.values()
    for at in killed:
        runs = RunsFolder(tmp_path / f"fit-{at}" / "runs")
        (again,) = fit(store, [RunSpec.from_dict(record["spec"])], runs, save_every="2")
        assert again["status"] == "finished"
        assert kept(runs.path) == whole


def test_a_run_alone_is_not_charged_for_its_saves(
    store: Store, specs: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = list[Path]()
    monkeypatch.setattr(trainer, "clock_of", lambda _: lambda: 100.0 * len(saves))
    monkeypatch.setattr(trainer, "write_state", lambda path, _: saves.append(path))
    (record,) = fit(store, chosen(store, specs, ("bfloat16",), 2), RunsFolder(tmp_path), save_every="2")
    assert len(saves) >= 2
    assert record["seconds_alone"] == 0


def test_workers_leave_the_same_bytes_as_this_process(
    store: Store, specs: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs: a single one needs no worker."""
    said = list[str]()
    monkeypatch.setattr(FitProgress, "say", lambda _, line: said.append(line))
    runs = specs(store, methods=["bitfit"], epochs=(1,), seeds=2)
    for workers in (1, 2):
        fit(store, runs, RunsFolder(tmp_path / str(workers)), workers=workers)
    assert "2 processes share 2 units of runs" in said
    one, other = (kept(tmp_path / str(workers)) for workers in (1, 2))
    assert one == other
    assert [record["status"] for record, _ in one.values()] == ["finished"] * 2


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    assert read_state(path) is None
    groups = {"model": {"a/b": torch.arange(3.0)}, "moments": {"0/step": torch.tensor(7.0)}}
    write_state(path, SavedState(groups, {"done": 3, "best": None}))
    found = read_state(path)
    assert found is not None
    assert found.values == {"done": 3, "best": None}
    assert {group: {n: t.tolist() for n, t in own.items()} for group, own in found.groups.items()} == {
        "model": {"a/b": [0.0, 1.0, 2.0]},
        "moments": {"0/step": 7.0},
    }


def test_a_full_disk_leaves_the_state_before(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    write_state(path, SavedState({"model": {"small": torch.zeros(4)}}, {}))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(FusionkitError, match="the disk is full"):
            write_state(path, SavedState({"model": {"large": torch.zeros(4096)}}, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert (found := read_state(path)) is not None
    assert list(found.groups["model"]) == ["small"]


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", b"garbage" * 9])
def test_a_damaged_state_is_named_and_not_trained_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be resumed from") as caught:
        read_state(path)
    assert "remove that file" in str(caught.value)


def test_a_state_is_kept_by_steps_or_by_minutes(tmp_path: Path) -> None:
    assert StateFile.of(tmp_path, "500").steps == 500
    assert StateFile.of(tmp_path, "0.5m").seconds == StateFile.of(tmp_path, ".5m").seconds == 30
    for text in ("0", "2.5", "1h", "-3", "m", "5.", "9" * 100_000 + "x"):
        with pytest.raises(UsageError, match="--save-every takes a number of steps, or minutes"):
            StateFile.of(tmp_path, text)
