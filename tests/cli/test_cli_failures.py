"""Work that fails, or goes on with a warning: damaged stores, full disks, odd labels, diverging runs."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fusionkit.cli.commands import CliCommands
from fusionkit.cli.fit import _print
from fusionkit.cli.main import main
from fusionkit.cluster import ClusterSettings

Command = Callable[..., Any]


@contextmanager
def cramped(size: int) -> Iterator[None]:
    """Files may not grow beyond this: what a full disk does, without filling one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_cut_chunk_stops_fit_with_its_name(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    store = shutil.copytree(small, tmp_path / "cut.store")
    chunk = store / "states.zarr" / "train" / "hidden_states" / "c" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    done = fusionkit("fit", store, "--out", tmp_path / "runs")
    assert done.code == 1
    assert f"chunk {chunk} is damaged" in done.err
    assert "fusionkit verify" in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("place", "told"), [("~nobody-of-that-name/run", "no such home folder"), ("r" * 300, "File name too long")]
)
def test_a_path_that_the_system_refuses_is_one_message(
    fusionkit: Command, tmp_path: Path, place: str, told: str
) -> None:
    for best in ((), ("--best",)):
        done = fusionkit("export", place, "--to", tmp_path / "head", *best)
        assert (done.code, done.out) == (2, "")
        assert told in done.err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory does not suffice"),
        (MemoryError(), "memory does not suffice"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/sample"), "cannot use /tmp/sample"),
        (OSError(errno.EIO, "Input/output error"), "cannot use a file"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_machine_lacks_is_one_message(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fusionkit.cli.main.group.main", Mock(side_effect=error))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"fusionkit: {told}\n")


def test_a_dry_run_of_a_study_on_a_cluster_encodes_its_samples_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on other machines do not see the folder of samples, and a forecast submits no job."""
    given = Mock()
    monkeypatch.setattr("fusionkit.cli.commands.encode_into", given)
    commands = CliCommands(ClusterSettings(kind="slurm"), None, 1, "cuda", retry_failed=False, log_to=())
    commands.sample({"source": "s"}, Path("s.store"))
    assert given.call_args.args[2:] == ("auto", None)


def test_runs_that_halving_stopped_are_told_where_no_other_run_ended(capsys: pytest.CaptureFixture[str]) -> None:
    _print([{"status": "stopped"}] * 2, Path("runs"), as_json=False)
    assert capsys.readouterr().out.startswith("2 runs stopped early by --halving")


@pytest.mark.parametrize("command", ["fit", "run"])
def test_a_wrong_save_every_is_refused_before_anything_is_done(
    command: str, small: Path, fusionkit: Command, tmp_path: Path
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(f"title: t\nencoder: minilm\nsources: {{s: {tmp_path}}}\nsweeps: {{a: {{store: s}}}}\n")
    given = {"fit": small, "run": study}[command]
    done = fusionkit(command, given, "--out", tmp_path / "runs", "--save-every", 0)
    assert done.code == 2
    assert "--save-every takes a number of steps, or minutes" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_study_under_torchrun_is_refused(fusionkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    (tmp_path / "a.yaml").write_text("sources: {one: data}\n")
    done = fusionkit("run", tmp_path / "a.yaml", "--out", tmp_path / "work")
    assert done.code == 2
    assert "torchrun shares one run of `fit`" in done.err


def test_closed_streams_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["fusionkit", "info", "no-such.store"])
    with pytest.raises(SystemExit) as ended:
        main()
    for name in ("stdout", "stderr"):
        getattr(sys, name).close()
    assert ended.value.code == 2


def test_an_unfinished_store_is_failed_work_not_a_wrong_path(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    store = shutil.copytree(small, tmp_path / "begun.store")
    (store / "manifest.json").rename(store / "plan.json")
    done = fusionkit("fit", store, "--out", tmp_path / "runs")
    assert done.code == 1
    assert "is not finished" in done.err
    assert "it goes on where it stopped" in done.err


def test_labels_that_train_lacks_are_a_warning(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    done = fusionkit(
        "fit", small, "--floor", "none", "--out", tmp_path / "runs", "--fusion", "last", "--epochs", 30, "--json"
    )
    assert done.code == 0
    assert "test: 1 example with a label that train lacks (neither): counted as errors" in done.err
    assert done.json[0]["score"] <= 3 / 4


def test_a_run_that_diverges_is_reported_and_the_others_stand(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    options = ["--fusion", "last", "--lr", 99, "--lr", 0.001, "--weight-decay", 90, "--epochs", 40]
    done = fusionkit("fit", small, "--floor", "none", "--out", tmp_path / "runs", *options, "--json")
    assert done.code == 0
    assert [(r["status"], r["score"] is None) for r in done.json] == [("failed", True), ("finished", False)]
    assert "failed: last lr 99.0 seed 0: the loss of last + classifier is no longer finite" in done.err
    table = fusionkit("results", tmp_path / "runs").out
    assert "0 + 1 failed" in table
    assert len(fusionkit("results", tmp_path / "runs", "--json").json) == 2


def test_where_every_run_fails_fit_fails_after_its_table(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    options = ["--fusion", "last", "--lr", 99, "--weight-decay", 90, "--epochs", 40, "--seeds", 2]
    for _ in range(2):  # trained, and read back
        done = fusionkit("fit", small, "--floor", "none", "--out", tmp_path / "runs", *options, "--json")
        assert done.code == 1
        assert [record["status"] for record in done.json] == ["failed"] * 2
        assert "fusionkit: all 2 runs failed\n  received: the loss of last + classifier is no longer finite" in done.err
        assert "--retry-failed tries them again" in done.err


def test_a_fit_on_a_full_disk_says_so_and_goes_on_later(small: Path, fusionkit: Command, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    options = ["fit", small, "--floor", "none", "--out", runs, "--fusion", "last", "--seeds", 2, "--epochs", 1]
    with cramped(100_000):  # less than the weights
        done = fusionkit(*options)
    assert done.code == 1
    assert "fusionkit: the disk is full: cannot write" in done.err
    assert "run the same command again" in done.err
    assert [path for path in runs.rglob("*") if path.is_file()] == []
    told = fusionkit("status", runs)
    assert "0 finished, 0 running, 0 failed" in told.out
    assert "2 runs broken off" in told.out or "1 run broken off" in told.out
    assert "holds no finished run" in fusionkit("info", runs).err
    again = fusionkit(*options, "--json")
    assert again.code == 0
    assert len(again.json) == 2


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False)
    if mount.returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_an_encode_on_a_full_disk_says_so_and_goes_on_later(
    tiny_disk: Path, corpus: Path, fusionkit: Command, tmp_path: Path
) -> None:
    options = ["encode", corpus, "--layers", "6", "--rows", "mean"]
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(800_000))
    done = fusionkit(*options, "--out", tiny_disk / "store")
    assert done.code == 1
    assert "fusionkit: the disk is full: cannot write" in done.err
    assert "GiB free there" in done.err
    assert not (tiny_disk / "store" / "manifest.json").exists()
    ballast.unlink()
    again = fusionkit(*options, "--out", tiny_disk / "store", "--json")
    assert again.code == 0, again.err
    assert fusionkit("verify", tiny_disk / "store").code == 0


@pytest.mark.parametrize(
    ("name", "goes_on"), [("fit", "; finished work is kept, run the same command to go on"), ("results", "")]
)
def test_ctrl_c_says_whether_the_same_command_goes_on(
    fusionkit: Command, monkeypatch: pytest.MonkeyPatch, name: str, goes_on: str
) -> None:
    monkeypatch.setattr("fusionkit.cli.main.Lazy.get_command", Mock(side_effect=KeyboardInterrupt))
    done = fusionkit(name)
    assert (done.code, done.out, done.err.strip()) == (130, "", f"fusionkit: interrupted{goes_on}")
