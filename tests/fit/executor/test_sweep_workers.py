"""Sweeps by worker processes: the same runs, whatever happens to the processes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.dataset.mixture import Mix, mix_of
from fusionkit.dataset.share import Share
from fusionkit.fit import RunsFolder, expand, fit, open_starts
from fusionkit.fit.executor import context
from fusionkit.fit.executor.context import SweepContext, open_context, opening_of
from fusionkit.fit.sweep.fixed_draws import FixedDraws
from fusionkit.fit.train import loop as training
from fusionkit.specs import RunSpec
from fusionkit.store import Store, open_store

LONG = 4000  # epochs: nobody waits for them


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def specs_of(store: Store | Mix, *fusions: str, **choices: Any) -> list[RunSpec]:
    return expand(store, **{"task": "tagging", "fusions": fusions, "epochs": (2,), **choices})


def test_workers_leave_the_same_records_and_weights_as_one_process(
    store: Store, tmp_path: Path, watch: Any, sweeping: Any
) -> None:
    specs = specs_of(store, "last", "linear", "concat", head="crf", seeds=2, dropout=0.2, shots=(None, 1))
    before = sweeping.children(os.getpid())
    alone = fit(store, specs, RunsFolder(tmp_path / "alone"), watch)
    shared = fit(store, specs, RunsFolder(tmp_path / "shared"), watch, workers=2)
    assert sweeping.kept(tmp_path / "shared") == sweeping.kept(tmp_path / "alone")
    assert [record["spec"] for record in shared] == [record["spec"] for record in alone]
    assert watch.begun == [(12, 24), (12, 24)]
    assert watch.epochs == 48
    assert watch.done == pytest.approx(watch.foretold)  # of all, although concat's epochs count for more than last's
    assert "2 processes share" in watch.said[-1]
    assert sweeping.leftovers(tmp_path / "shared") == []
    assert set(sweeping.children(os.getpid())) <= set(before)


def test_what_workers_open_again_is_the_same_mix_and_the_same_runs_to_start_from(
    store: Store, make_store: Callable[..., Store], corpus: Any, tmp_path: Path, watch: Any
) -> None:
    other = make_store("words", name="other", train=corpus["train"][:5], test=corpus["test"], validation=corpus["test"])
    first = fit(store, specs_of(store, "linear", seeds=2), RunsFolder(tmp_path / "first"), watch)
    starts = open_starts([tmp_path / "first"])
    mix = mix_of([Share(store), Share(other, "60%")], [store])
    assert isinstance(mix, Mix)
    drawn = FixedDraws(("a", "b"))
    context = SweepContext(mix, starts, {drawn.digest: drawn.ids})
    again = open_context(json.loads(json.dumps(opening_of(context))))
    assert isinstance(again.store, Mix)
    assert (again.store.text, again.store.evaluate_on) == (mix.text, mix.evaluate_on)
    assert set(again.starts) == set(context.starts) == {RunSpec.from_dict(each["spec"]).digest for each in first}
    assert again.draws == context.draws
    for spec in specs_of(mix, "linear", seeds=2):
        assert again.data(spec).train.ids == context.data(spec).train.ids
        assert again.positions(spec) == context.positions(spec)


def test_a_store_that_is_no_longer_where_it_was_is_fitted_by_this_process(
    store: Store, tmp_path: Path, watch: Any
) -> None:
    here = open_store(shutil.copytree(str(store.path), tmp_path / "here"))
    for split in here.splits:
        _ = here[split].examples, here[split].hidden_states[:], here[split].row_offsets, here[split].row_mask
    (tmp_path / "here").rename(tmp_path / "there")
    assert opening_of(SweepContext(here)) is None
    assert opening_of(SweepContext(open_store(tmp_path / "there"))) is not None


def test_a_unit_whose_memory_does_not_suffice_is_halved_until_it_does(
    store: Store, tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real allocations that nobody can make: of all units but those of one run, and of one run alone too."""
    specs = specs_of(store, "last", "linear", "attention", "layer:1", "layer:2")
    train = training.train_unit

    def hungry(given: Any, *rest: Any) -> Any:
        if len(given) > 1 or given[0].fusion == "attention":
            torch.empty(1 << 50)
        return train(given, *rest)

    monkeypatch.setattr(context, "train_unit", hungry)
    records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch)
    assert {record["spec"]["fusion"]: record["status"] for record in records} == {
        "last": "finished", "linear": "finished", "attention": "failed", "layer:1": "finished", "layer:2": "finished",
    }  # fmt: skip
    assert records[2]["error"].startswith("out of memory: ")
    assert "can't allocate memory" in records[2]["error"]
    assert [line.split(":")[0] for line in watch.said[-4:]] == [
        "5 runs lost, tried again in two halves",
        "3 runs lost, tried again in two halves",
        "2 runs lost, tried again in two halves",
        "2 runs lost, tried again in two halves",
    ]


def test_failed_runs_are_tried_again_when_asked_for_and_only_then(
    store: Store, tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, other = specs_of(store, "last", "linear")
    wild = dataclasses.replace(sound, lr=99.0, weight_decay=50.0, epochs=40)
    runs = RunsFolder(tmp_path / "runs")
    assert [each["status"] for each in fit(store, [wild, other], runs, watch)] == ["failed", "finished"]
    with monkeypatch.context() as patch:
        dropped = list[RunSpec]()
        patch.setattr(RunsFolder, "drop_state", lambda _, spec: dropped.append(spec))
        fit(store, [wild, other], runs, watch)
    assert dropped == [other]  # the failed one goes on from its state when it is tried again
    assert len(watch.ended) == 2
    assert watch.said[-2:] == [
        "2 of 2 runs there already", "1 of them failed; --retry-failed tries them again"
    ]  # fmt: skip
    again = fit(store, [wild, other], runs, watch, retry_failed=True)
    assert [record["spec"]["lr"] for record in watch.ended[2:]] == [99.0]
    assert [each["status"] for each in again] == ["failed", "finished"]


def killing(sweeping: Any, runs: Path, spec: RunSpec, times: int | None) -> threading.Thread:
    """Kills this process's worker that holds a run's claim, whenever one does, so many times."""
    done = threading.Event()

    def kill() -> None:
        left = times
        while not done.is_set() and left != 0:
            for child in sweeping.children(os.getpid()):
                if sweeping.holds(child, runs / ".claims" / spec.digest):
                    os.kill(child, signal.SIGKILL)
                    sweeping.until(lambda child=child: not sweeping.runs_on(child))
                    left = None if left is None else left - 1
            done.wait(0.002)

    thread = threading.Thread(target=kill, daemon=True)
    thread.done = done  # type: ignore[attr-defined]
    thread.start()
    return thread


def test_a_worker_that_is_killed_is_replaced_and_no_run_is_lost(
    store: Store, tmp_path: Path, watch: Any, sweeping: Any
) -> None:
    specs = specs_of(store, "last", "linear", seeds=3, epochs=(60,))
    killer = killing(sweeping, tmp_path / "runs", specs[1], times=1)
    records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch, workers=2)
    killer.done.set()  # type: ignore[attr-defined]
    assert [record["status"] for record in records] == ["finished"] * 6
    assert len(watch.ended) == 6
    said = [line for line in watch.said if "tried again in two halves" in line]
    assert len(said) == 1
    assert said[0].endswith("the process that trained it ended: SIGKILL")
    assert sweeping.leftovers(tmp_path / "runs") == []


@pytest.mark.soak("kills")
def test_a_run_that_ends_its_worker_again_and_again_is_kept_as_failed_and_the_others_stand(
    store: Store, tmp_path: Path, watch: Any, sweeping: Any
) -> None:
    specs = specs_of(store, "last", "linear", "attention", seeds=1, epochs=(40,))
    runs = RunsFolder(tmp_path / "runs")
    killer = killing(sweeping, tmp_path / "runs", specs[1], times=None)
    records = fit(store, specs, runs, watch, workers=2)
    killer.done.set()  # type: ignore[attr-defined]
    assert [record["status"] for record in records] == ["finished", "failed", "finished"]
    assert records[1]["error"] == "the process that trained it ended: SIGKILL"
    assert runs.frame()["status"].tolist().count("failed") == 1
    assert (tmp_path / "runs" / "results.parquet").is_file()


@pytest.mark.soak("kills")
def test_no_worker_outlives_its_parent(store: Store, tmp_path: Path, sweeping: Any) -> None:
    sweep = sweeping.start(store, tmp_path / "runs", specs_of(store, "last", "linear", epochs=(LONG,)), 2)
    workers = sweeping.until(lambda: len(found := sweeping.children(sweep.pid)) == 2 and found)
    claims = tmp_path / "runs" / ".claims"
    sweeping.until(lambda: claims.exists() and len(list(claims.iterdir())) == 2)  # both train
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.end()
    sweeping.until(lambda: not any(map(sweeping.runs_on, workers)))


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.soak("kills"))]
)
def test_a_signal_ends_all_workers_at_once_keeps_what_is_finished_and_says_how_to_go_on(
    store: Store, tmp_path: Path, sweeping: Any, watch: Any, name: str, code: int
) -> None:
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "fusionkit", "fit", str(store.path), "--out", str(runs), "--task", "tagging"]
    command += ["--fusion", "last", "--workers", "2", "--epochs", "1", "--epochs", str(LONG)]
    # A session of its own, as a terminal has: Ctrl-C goes to every process in it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    sweeping.until(lambda: sweeping.ended(runs))
    workers = sweeping.until(lambda: sweeping.children(process.pid))
    if name == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=sweeping.PATIENCE)
    assert process.returncode == code
    assert "run the same command to go on" in err
    assert "Traceback" not in err
    assert not any(map(sweeping.runs_on, workers))
    assert len(sweeping.ended(runs)) == 1
    short = [spec for spec in specs_of(store, "last", epochs=(1, LONG)) if spec.epochs == 1]
    fit(store, short, RunsFolder(runs), watch)
    assert watch.said == ["1 of 1 run there already"]


# In each worker, which Python imports it into: the first that syncs a record's file is killed, before the rename.
KILLED_AT_A_RECORD = """
import os, signal
fsync, flag = os.fsync, os.environ.get("KILL_ONCE", "")
def killing(file):
    if "run.json" in os.path.basename(os.readlink(f"/proc/self/fd/{file}")):
        try:
            os.unlink(flag)
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return fsync(file)
os.fsync = killing
"""


@pytest.mark.soak("kills")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is written")
def test_a_worker_killed_between_a_runs_weights_and_its_record_loses_no_run(
    store: Store, tmp_path: Path, watch: Any, sweeping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "once"
    flag.touch()
    (tmp_path / "sitecustomize.py").write_text(KILLED_AT_A_RECORD)
    specs = specs_of(store, "last", "linear", seeds=3, epochs=(20,))
    fit(store, specs, RunsFolder(tmp_path / "alone"), watch, workers=1)
    monkeypatch.setenv("KILL_ONCE", str(flag))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    )
    records = fit(store, specs, RunsFolder(tmp_path / "runs"), watch, workers=2)
    assert not flag.exists()
    assert [record["status"] for record in records] == ["finished"] * 6
    assert any(line.endswith("the process that trained it ended: SIGKILL") for line in watch.said)
    assert sweeping.kept(tmp_path / "runs") == sweeping.kept(tmp_path / "alone")
    assert sweeping.leftovers(tmp_path / "runs") == []
