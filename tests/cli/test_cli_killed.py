"""`fit`, `report` and `export` killed before a step on the disk, with older output in the place they write to."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
STEPS = Path(__file__).parent.parent / "faults" / "steps.py"
FIT = ("fit", "small.store", "--fusion", "last", "--epochs", "1", "--workers", "1", "--floor", "none")
TIMES = ("seconds", "epoch_seconds", "seconds_alone", "peak_memory", "peak_memory_alone", "threads")


@pytest.fixture(scope="module")
def before(small: Path, fusionkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store and two runs of it, one of them in a folder of its own, and an export of it."""
    folder = tmp_path_factory.mktemp("steps") / "before"
    shutil.copytree(small, folder / "small.store")
    words = [folder / word if word == "small.store" else word for word in FIT]
    assert fusionkit(*words, "--seeds", 2, "--out", folder / "runs").code == 0
    old = next((folder / "runs").glob("*/run.json")).parent
    shutil.copytree(old, folder / "old" / old.name)
    assert fusionkit("export", old, "--to", folder / "head").code == 0
    return folder


def records(runs: Path) -> dict[str, Any]:
    """What each run is, but for the time it took; and its weights."""
    return {
        path.parent.name: (
            {name: value for name, value in json.loads(path.read_text()).items() if name not in (*TIMES, "curve")},
            (path.parent / "weights.safetensors").read_bytes(),
        )
        for path in runs.glob("*/run.json")
    }


def visible(folder: Path) -> dict[str, bytes]:
    """The files of a folder that a user sees."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


@pytest.mark.parametrize("every", [1000, pytest.param(1, marks=pytest.mark.soak("kills"))])
def test_what_is_killed_leaves_the_old_or_the_new_and_the_same_command_goes_on(
    before: Path, fusionkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    start = Path(shutil.copytree(before, tmp_path / "before"))
    run = next((before / "runs").glob("*/run.json")).parent.name
    other = next(path.parent.name for path in (before / "runs").glob("*/run.json") if path.parent.name != run)
    commands = {
        "fit": [*FIT, "--seeds", "3", "--out", "runs"],
        "report": ["report", "runs", "--out", "page.html"],
        "export": ["export", f"runs/{other}", "--to", "head", "--overwrite"],
    }
    if every > 1:
        del commands["report"]  # a page takes longer than all else
    else:
        assert fusionkit("report", start / "old", "--out", start / "page.html").code == 0
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    words = [sys.executable, str(STEPS), str(tmp_path), str(every), str(tmp_path / "commands.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed: dict[str, list[int]] = json.loads(done.stdout)
    assert min(map(len, killed.values())) >= 2

    trained, old_runs = records(tmp_path / "fit-whole" / "runs"), records(before / "runs")
    assert len(trained) == 3
    for at in killed["fit"]:
        place = tmp_path / f"fit-{at}"
        left = records(place / "runs")  # each record is whole, and its weights are there
        assert old_runs.items() <= left.items() <= trained.items()
        assert fusionkit("status", place / "runs", "--json").json["finished"] == len(left)
        assert fusionkit("results", place / "runs", "--format", "csv").code == 0
    monkeypatch.chdir(place)
    assert fusionkit(*commands["fit"]).code == 0
    assert records(place / "runs") == trained
    assert not [path for path in (place / "runs").rglob(".*") if path.name != ".claims"]

    old, new = visible(start), visible(tmp_path / "report-whole") if "report" in killed else {}
    for at in killed.get("report", ()):
        seen = visible(tmp_path / f"report-{at}")
        assert seen.keys() <= new.keys()
        assert [name for name, content in seen.items() if content not in (old.get(name), new[name])] == []

    heads = [visible(folder / "head") for folder in (before, tmp_path / "export-whole")]
    assert heads[0] != heads[1]
    for at in killed["export"]:
        place = tmp_path / f"export-{at}"
        monkeypatch.chdir(place)
        if (place / "head").exists():  # between two renames it is a moment aside
            assert visible(place / "head") in heads
        assert fusionkit(*commands["export"]).code == 0
        assert visible(place / "head") == heads[1]
        assert [path.name for path in place.glob(".head.*.before")] == []
        for part in place.glob(".head.*.partial"):  # half of an export, which its process may still be writing
            os.utime(part, (0, 0))
        assert fusionkit(*commands["export"]).code == 0
        assert [path.name for path in place.iterdir() if path.name.startswith(".head.")] == []


def test_on_a_file_system_without_locks_work_is_done_and_nobody_elses_files_are_touched(
    write_source: Callable[..., Path], small: Path, fusionkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    source = write_source(train=[{"text": f"number {n}", "label": "odd" if n % 2 else "even"} for n in range(8)])
    done = fusionkit("encode", source, "--out", tmp_path / "s", "--rows", "mean")
    assert (done.code, done.err.count("without locks: start no second encode into s")) == (0, 1)
    assert fusionkit("verify", tmp_path / "s").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    fit = ("fit", small, "--fusion", "last", "--epochs", 1, "--workers", 1, "--floor", "none")
    assert fusionkit(*fit, "--out", tmp_path / "first").code == 0
    [folder] = (path.parent for path in (tmp_path / "first").glob("*/run.json"))
    # Another driver is at the same run, and writes its record just now.
    theirs = tmp_path / "second" / folder.name / ".run.json.1-0000.partial"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    done = fusionkit(*fit, "--out", tmp_path / "second")
    assert (done.code, done.err.count("without locks: start no second fit on this folder")) == (0, 1)
    assert theirs.exists()
    assert records(tmp_path / "second") == records(tmp_path / "first")


@pytest.mark.soak("kills")
@pytest.mark.parametrize("trial", range(4))
def test_two_drivers_on_a_folder_without_locks_end_with_the_runs_of_one(
    small: Path, fusionkit: Command, tmp_path: Path, trial: int
) -> None:
    words = ["fit", small, "--fusion", "last", "--fusion", "linear", "--seeds", "3", "--epochs", "2", "--workers", "1"]
    words += ["--floor", "none"]  # a floor has no weights to compare
    assert fusionkit(*words, "--out", tmp_path / "one").code == 0
    code = "import fcntl, errno, sys\ndef no(*_): raise OSError(errno.ENOLCK, 'No locks available')\nfcntl.flock = no\n"
    code += "from fusionkit.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, *map(str, words), "--out", str(tmp_path / "two")]
    drivers = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(2)]
    errors = [driver.communicate()[1].decode() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], errors
    assert records(tmp_path / "two") == records(tmp_path / "one")
    assert fusionkit("status", tmp_path / "two", "--json").json["finished"] == 6
