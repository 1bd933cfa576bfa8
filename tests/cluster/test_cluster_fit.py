"""A sweep by the workers of a cluster leaves the same records and weights as one process."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fusionkit.cluster import Cluster, ClusterSettings
from fusionkit.cluster.executor import ClusterExecutorFactory
from fusionkit.cluster.local import environments_of
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.context import SweepContext, open_context, opening_of
from fusionkit.fit.progress import FitProgress
from fusionkit.runs.claims import Claims, runs_status
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

Pids = Callable[[], list[int]]
Until = Callable[[Callable[[], Any]], Any]


def _sweeping() -> Any:
    path = Path(__file__).parent.parent / "fit" / "sweeping.py"
    spec = importlib.util.spec_from_file_location("fit_sweeping_for_clusters", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sweeping = _sweeping()


@dataclass
class Watch(FitProgress):
    """Who watches a sweep; does something at the first epoch that is told of."""

    then: Callable[[], None] = lambda: None
    epochs: int = 0
    ended: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def epoch(self, work: float) -> None:
        self.epochs += 1
        self.then, then = (lambda: None), self.then
        then()

    def run(self, record: dict[str, Any]) -> None:
        self.ended.append(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        self.others.append(record)

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture(scope="module")
def store(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twenty sentences whose first letter tells their class, ten more to judge by."""
    folder = tmp_path_factory.mktemp("source")
    for split, words in {"train": "abcdefghijabcdefghij", "test": "abcdefghij"}.items():
        lines = [f'{{"text": "{word} x{word}", "label": "{"low" if word < "f" else "high"}"}}' for word in words]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    source = open_source(str(folder))
    encode(source, guess_columns(source), folder / "store", EncodeSpec(rows="mean"), encoder)
    return open_store(folder / "store")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_workers_leave_the_same_records_and_weights_as_one_process(
    cluster: Cluster, settings: ClusterSettings, store: Store, tmp_path: Path
) -> None:
    specs = expand(store, task="classification", fusions=("last", "linear", "concat"), epochs=(3,), seeds=2)
    fit(store, specs, RunsFolder(tmp_path / "alone"))
    watch, notes = Watch(), list[str]()
    elsewhere = ClusterExecutorFactory(cluster, replace(settings, threads=2), notes.append)
    records = fit(store, specs, RunsFolder(tmp_path / "shared"), watch, cluster=lambda: elsewhere)
    alone, shared = (RunsFolder(tmp_path / name).frame().set_index("digest") for name in ("alone", "shared"))
    rows = [column for column in alone.columns if column not in (*sweeping.TIMES, "largest_weight")]
    pd.testing.assert_frame_equal(shared[rows].sort_index(), alone[rows].sort_index(), rtol=1e-5)
    for spec in specs:  # another width of a stack sums in another order
        weights = [load_file(tmp_path / name / spec.digest / "weights.safetensors") for name in ("alone", "shared")]
        torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)
    assert [record["status"] for record in records] == ["finished"] * 6
    assert {record["threads"] for record in records} == {1}  # whatever a worker's encode may use
    assert (len(watch.ended), len(watch.others)) == (6, 0)
    assert watch.epochs > 0
    assert "workers" in notes[-1]
    assert sweeping.leftovers(tmp_path / "shared") == []
    assert runs_status(RunsFolder(tmp_path / "shared")) == {
        "path": str(tmp_path / "shared"), "finished": 6, "stopped": 0, "broken_off": 0, "running": {}, "failed": [],
    }  # fmt: skip


def test_workers_train_through_the_encoder_as_one_process_does(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, tmp_path: Path
) -> None:
    (folder := tmp_path / "source").mkdir()
    for split in ("train", "test"):
        rows = [f'{{"text": "{word} x{word}", "label": "{"low" if word < "f" else "high"}"}}' for word in "abcdefghij"]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    source = open_source(str(folder))
    encode(source, guess_columns(source), tmp_path / "store", EncodeSpec(rows="tokens"), encoder)
    store = open_store(tmp_path / "store")
    specs = expand(store, task="classification", methods=["bitfit"], fusions=("linear",), epochs=(1,), seeds=2)
    fit(store, specs, RunsFolder(tmp_path / "alone"))
    elsewhere = ClusterExecutorFactory(cluster, settings)
    records = fit(store, specs, RunsFolder(tmp_path / "shared"), cluster=lambda: elsewhere)
    assert [record["status"] for record in records] == ["finished"] * 2
    for spec in specs:
        for file in ("weights.safetensors", "delta.safetensors"):
            one, other = (tmp_path / name / spec.digest / file for name in ("alone", "shared"))
            assert one.read_bytes() == other.read_bytes()


def test_workers_share_the_memory_of_one_machine_alone(cluster: Cluster) -> None:
    here = ClusterExecutorFactory(cluster, ClusterSettings(workers=2, gpus=0))
    jobs = ClusterExecutorFactory(cluster, ClusterSettings(kind="slurm", workers=2, memory="4GB"))
    assert (here.sharers, jobs.sharers) == (cluster.workers, 1) == (2, 1)
    assert (here.memory, jobs.memory) == (None, 4 * 10**9)


def test_a_worker_killed_midway_loses_no_run(
    cluster: Cluster, settings: ClusterSettings, store: Store, tmp_path: Path, pids: Pids
) -> None:
    specs = expand(store, task="classification", fusions=("last", "linear"), epochs=(100,), seeds=3)
    runs = tmp_path / "runs"
    victims = pids()
    killed: list[int] = []

    def kill() -> None:
        """A worker that trains."""
        holding = [pid for pid in victims if any(sweeping.holds(pid, path) for path in (runs / ".claims").iterdir())]
        Claims(runs, "another sweep on this folder").close()
        killed.extend(holding[:1])
        os.kill(holding[0], signal.SIGKILL)

    watch = Watch(kill)
    records = fit(store, specs, RunsFolder(runs), watch, cluster=lambda: ClusterExecutorFactory(cluster, settings))
    assert [record["status"] for record in records] == ["finished"] * 6
    assert len(killed) == 1
    assert any("the worker that trained it was lost" in line for line in watch.said)
    assert sweeping.leftovers(runs) == []
    assert killed[0] not in pids()


def test_a_failed_run_is_a_row_and_its_error_is_told(
    cluster: Cluster, settings: ClusterSettings, store: Store, tmp_path: Path
) -> None:
    specs = expand(
        store, task="classification", fusions=("linear",), lrs=(2e-3, 99.0), weight_decay=50.0, epochs=(40,)
    )  # fmt: skip
    records = fit(
        store, specs, RunsFolder(tmp_path / "runs"), Watch(), cluster=lambda: ClusterExecutorFactory(cluster, settings)
    )
    assert [record["status"] for record in records] == ["finished", "failed"]
    [failed] = runs_status(RunsFolder(tmp_path / "runs"))["failed"]
    assert (failed["fusion"], failed["lr"]) == ("linear", 99.0)
    assert "finite" in failed["error"]


def test_each_worker_trains_on_the_gpu_that_it_sees(
    cluster: Cluster, settings: ClusterSettings, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two workers on two GPUs, and of one without any; what a worker is sent names no number."""
    opening = opening_of(SweepContext(store))
    assert opening is not None
    factory = ClusterExecutorFactory(cluster, settings)
    executor = factory.executor(opening, RunsFolder(tmp_path), lambda event: None)
    with closing(executor):
        sent = executor._job.opening  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(os.environ["CUDA_VISIBLE_DEVICES"]))
    found = []
    for each in (*environments_of(ClusterSettings(threads=1), ["0", "3"]), {"CUDA_VISIBLE_DEVICES": ""}):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", each["CUDA_VISIBLE_DEVICES"])
        found.append((each["CUDA_VISIBLE_DEVICES"], str(open_context(sent).device)))
    assert found == [("0", "cuda"), ("3", "cuda"), ("", "cpu")]
    assert open_context({**sent, "device": "cpu"}).device.type == "cpu"
