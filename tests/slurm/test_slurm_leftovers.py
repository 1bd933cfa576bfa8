"""The tests' own Slurm: what a run that was killed has left is swept up, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

leftovers: Any = sys.modules["slurm_leftovers"]  # conftest.py has loaded it


def test_what_a_killed_run_left_is_swept_up_and_a_living_ones_is_not(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sleepers = {}
        for name in ("dead", "living", "unnamed"):
            folder = tmp_path / f"{leftovers.PREFIX}{name}"
            folder.mkdir()
            sleepers[name] = stack.enter_context(
                subprocess.Popen(["/bin/sleep", "300"], env={"SLURM_CONF": str(folder / "slurm.conf")})
            )
            stack.callback(sleepers[name].kill)
        leftovers.claim(tmp_path / f"{leftovers.PREFIX}living")
        gone = subprocess.Popen(["/bin/true"])
        gone.wait()
        dead = tmp_path / f"{leftovers.PREFIX}dead"
        (dead / leftovers.OWNER).write_text(f"{gone.pid} 1")
        assert [process.pid for process in leftovers.users(dead)] == [sleepers["dead"].pid]
        assert leftovers.sweep(tmp_path) == [dead]
        assert {name for name, each in sleepers.items() if each.poll() is None} == {"living", "unnamed"}
        assert {path.name for path in tmp_path.iterdir()} == {f"{leftovers.PREFIX}{n}" for n in ("living", "unnamed")}
        assert leftovers.sweep(tmp_path) == []


def test_the_number_of_a_dead_owner_may_be_another_process(tmp_path: Path) -> None:
    folder = tmp_path / f"{leftovers.PREFIX}a"
    folder.mkdir()
    leftovers.claim(folder)
    number, began = (folder / leftovers.OWNER).read_text().split()
    (folder / leftovers.OWNER).write_text(f"{number} {int(began) - 1}")
    assert leftovers.sweep(tmp_path) == [folder]


@pytest.mark.parametrize("note", ["", "17", "x y"])
def test_a_note_that_is_half_written_is_left_alone(tmp_path: Path, note: str) -> None:
    folder = tmp_path / f"{leftovers.PREFIX}a"
    folder.mkdir()
    (folder / leftovers.OWNER).write_text(note)
    assert leftovers.sweep(tmp_path) == []
