"""Several processes train one run together: the same steps, so the same losses, scores and weights within rounding."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fusionkit.dataset.stores import Stores, stores_of
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.ragged import IntArray
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tuning.pieces import pieces_of
from fusionkit.tuning.ranks import Ranks, joined
from fusionkit.tuning.trainer import TunedRun

ROOT = Path(__file__).parents[2]
STILL: dict[str, Any] = {"dropout": 0.0, "encoder_dropout": 0.0, "lrs": (1e-3,)}
CHOICES: dict[str, dict[str, Any]] = {
    # 40 examples in minibatches of 13: the last one has a single example, of which the second rank gets none.
    "sentences": {"methods": ["full"], "head": "crf", "batch_sizes": (13,), "accumulate": 2, "patience": 1},
    "two phases": {"methods": ["diff-prune"], "epochs": (3,)},
    "examples": {"methods": ["houlsby:4"], "task": "classification", "label": "label", "head": "classifier"},
}


class Behind(Ranks):
    """One of two processes, whose other one has done four steps more."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return 2 * tensor + 4


def test_processes_that_see_different_states_of_a_run_end(store: Store, specs: Callable[..., list[RunSpec]]) -> None:
    (spec,) = specs(store, methods=["top:1"], epochs=(1,))
    context = SweepContext(store)
    run = TunedRun(spec, context, context.data(spec))
    run._ranks = Behind(0, 2)
    with pytest.raises(FusionkitError, match="see different states of it") as caught:
        run.train(lambda *_: None, lambda *_: None, None)
    assert caught.value.received == "step 0 in process 1 of 2"


def trained(store: Stores, specs: list[RunSpec], folder: Path, ranks: int = 2, stop: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "specs.json").write_text(json.dumps([spec.to_dict() for spec in specs]))
    places = ",".join(str(each.path) for each in stores_of(store))
    given = map(str, (places, folder, ranks, folder / "specs.json", stop))
    command = [sys.executable, str(Path(__file__).with_name("ranker.py")), *given]
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ours, timeout=300)
    assert done.returncode == 0, done.stderr


def kept(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    (path,) = folder.glob("*/run.json")
    record: dict[str, Any] = json.loads(path.read_text())
    files = [path.with_name(f"{name}.safetensors") for name in ("delta", "weights")]
    return record, {name: weights for file in files if file.exists() for name, weights in load_file(file).items()}


def assert_equal(folder: Path, ranks: int = 2) -> None:
    (one, alone), (other, shared) = kept(folder / "1"), kept(folder / str(ranks))
    assert (one["processes"], other["processes"]) == (1, ranks)
    losses = [[epoch["loss"] for epoch in record["curve"]] for record in (one, other)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert other["score"] == pytest.approx(one["score"], abs=1e-6)
    assert other["best_epoch"] == one["best_epoch"]
    for split, scores in one["scores"].items():
        assert other["scores"][split] == pytest.approx(scores, abs=1e-6)
    assert other["sampled"] == one["sampled"]
    assert set(alone) == set(shared)
    if one["spec"]["method"] == "diff-prune":  # which weights it keeps is a matter of rounding
        return
    for name in (each for each in alone if not each.endswith("key.bias")):  # their gradient is rounding alone
        torch.testing.assert_close(shared[name], alone[name], rtol=1e-2, atol=2e-4, msg=name)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_make_the_steps_of_one(store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path) -> None:
    short = ("sentences", "examples")
    chosen = [spec for name in short for spec in specs(store, **{**STILL, **CHOICES[name], "epochs": (1,)})]
    trained(store, chosen, tmp_path)
    for number in range(len(short)):
        assert_equal(tmp_path / str(number))


def test_ranks_have_as_much_to_do_and_every_example_once(store: Store, specs: Callable[..., list[RunSpec]]) -> None:
    from fusionkit.dataset.labels import load_task
    from fusionkit.tasks import TASKS

    split = load_task(store, TASKS["tagging"], "tags", None).train
    examples: IntArray = np.arange(13)
    for ranks, count in ((1, 1), (2, 1), (2, 3), (3, 2), (20, 2)):
        shares = pieces_of(split, examples, count, ranks)
        assert len(shares) == ranks
        sizes = [sum(map(len, share)) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(one for share in shares for piece in share for one in piece) == list(range(13))


@pytest.mark.parametrize("several", [False, True])
def test_every_rank_chooses_its_epoch_by_the_scores_of_the_first(
    store: Store, stores: TaskStores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    scores = iter([0.9, 0.1])

    def of_first(ranks: Ranks, value: Any) -> Any:
        told = next(scores)
        return dict.fromkeys(value, told) if several else told

    monkeypatch.setattr(Ranks, "of_first", of_first)
    usual: dict[str, Any] = {"methods": ["bitfit"], "fusions": ["last"], "epochs": (2,), "batch_sizes": (8,)}
    if several:
        (record,) = fit(stores, expand(stores, pool="cls", choose_epoch="each", **usual), RunsFolder(tmp_path))
        assert record["best_epochs"] == {"tags": 1, "kind": 1}
    else:
        (record,) = fit(store, expand(store, task="tagging", head="linear-tagger", **usual), RunsFolder(tmp_path))
    assert [epoch["validation_score"] for epoch in record["curve"]] == [0.9, 0.1]
    assert record["best_epoch"] == 1


def test_a_rank_without_memory_ends_the_sweep(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait for it: only torchrun ends them, once this process has ended."""

    def no_memory(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    (spec,) = specs(store, methods=["bitfit"])
    monkeypatch.setattr(Ranks, "of_process", lambda: Ranks(0, 2))
    monkeypatch.setattr(Ranks, "announce", lambda *given: None)
    monkeypatch.setattr("fusionkit.tuning.trainer.TunedRun", no_memory)
    with pytest.raises(FusionkitError, match="process 1 of 2 cannot train bitfit: out of memory") as caught:
        fit(store, [spec], RunsFolder(tmp_path))
    assert "--accumulate" in (caught.value.remedy or "")


def test_a_process_of_torchrun_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no GPU at all: --device cuda never means the CPU."""
    monkeypatch.setenv("LOCAL_RANK", "63")
    with pytest.raises(UsageError, match="torchrun: device 'cuda:63' cannot be used") as caught, joined("cuda"):
        pass
    assert "as many processes as there are GPUs" in (caught.value.remedy or "")


@pytest.mark.soak("products")
def test_three_ranks_go_on_from_a_state_of_one(
    store: Store, specs: Callable[..., list[RunSpec]], tmp_path: Path
) -> None:
    """The state that a process alone left half-way serves ranks as it serves that process."""
    chosen = [spec for own in CHOICES.values() for spec in specs(store, **{**STILL, **own})]
    trained(store, chosen, tmp_path, 3, stop=5)
    for number in range(len(CHOICES)):
        assert_equal(tmp_path / str(number), 3)


@pytest.mark.soak("products")
def test_ranks_share_the_steps_of_several_tasks(stores: TaskStores, tmp_path: Path) -> None:
    """Some minibatches of the second task have one example, of which the second rank gets none."""
    usual: dict[str, Any] = {"fusions": ["linear"], "pool": "cls", "epochs": (2,), "batch_sizes": (10,), "lrs": (1e-3,)}
    ways: list[dict[str, Any]] = [
        {"methods": ["pals:6", "houlsby:4"], "sampling": "uniform", "joint_fusion": "each", "encoder_dropout": 0.0},
        {"methods": ["full"], "choose_epoch": "each", "accumulate": 2, "encoder_dropout": 0.0},
        {"methods": ["frozen"]},
    ]
    chosen = [spec for way in ways for spec in expand(stores, **usual, **way)]
    trained(stores, chosen, tmp_path)
    for number in range(len(chosen)):
        assert_equal(tmp_path / str(number))


@pytest.mark.soak("products")
def test_torchrun_trains_runs_by_the_command_line(store: Store, weather: Store, tmp_path: Path) -> None:
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["--method", "frozen", "--method", "bitfit", "--epochs", "2", "--encoder-dropout", "0", "--dropout", "0"]
    words += ["--device", "cpu"]  # there may be one GPU, which two processes cannot share
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fusionkit"]
    several = [str(store.path), str(weather.path), "--task", "multi", "--label", "towns=label", "--pool", "cls", *words]
    given = [*start, "fit", *several, "--out", str(tmp_path / "tasks"), "--fusion", "last"]
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=ours)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kept in") == 1
    records = [json.loads(path.read_text()) for path in (tmp_path / "tasks").glob("*/run.json")]
    assert {record["spec"]["method"]: record["processes"] for record in records} == {"frozen": 2, "bitfit": 2}
    given = [*start, "fit", str(store.path), "--label", "label", *words, "--out", str(tmp_path / "runs")]
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=ours)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kept in") == 1  # one process speaks
    shutil.rmtree(tmp_path / "runs")
    for extra, told in ((["--workers", "2"], "torchrun starts the processes"), (["--cluster", "local"], "torchrun")):
        refused = subprocess.run([*given, *extra], capture_output=True, text=True, check=False, env=ours)
        assert refused.returncode != 0
        assert told in refused.stderr
    assert not list((tmp_path / "runs").glob("*/run.json"))
