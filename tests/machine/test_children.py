"""Child processes: what they are told and tell, and that they end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusionkit.machine.child_processes import ChildProcess

ECHO = """
import os, sys, time
def main(channel):
    while True:
        told = channel.receive()
        if told == "raise":
            raise RuntimeError("as told")
        if told == "abort":
            os.abort()
        if told == "print":
            print("on its output")
        if told == "hang":
            channel.send("hanging")
            time.sleep(600)
        channel.send([told, os.getpid(), os.environ.get("GIVEN")])
"""
# No guard around it, as in a user's script: the child is not this script once more.
PARENT = """
import sys, time
from fusionkit.machine.child_processes import ChildProcess
child = ChildProcess("echo")
child.send("hang")
assert child.receive() == "hanging"
print(child.process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module ``echo`` that children import, as this process would, by ``sys.path``."""
    (tmp_path / "echo.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)


def runs_on(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_answers_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    child = ChildProcess("echo", {"GIVEN": "seven"})
    child.send({"ä": [1, None]})
    assert child.receive() == [{"ä": [1, None]}, child.process.pid, "seven"]
    assert child.process.pid != os.getpid()
    child.send("print")  # nobody's terminal
    assert child.receive()[0] == "print"
    child.end()
    assert not runs_on(child.process.pid)


def test_a_child_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "signal.py").write_text("raise RuntimeError('not the library')")
    monkeypatch.chdir(here)
    child = ChildProcess("echo")
    child.send("one")
    assert child.receive()[0] == "one"
    child.end()


@pytest.mark.parametrize(
    ("told", "how"), [("raise", "exit status 1: RuntimeError: as told"), ("abort", "SIGABRT")]
)  # fmt: skip
def test_how_a_child_ended_is_told_with_its_last_words(told: str, how: str) -> None:
    child = ChildProcess("echo")
    child.send(told)
    with pytest.raises((EOFError, ConnectionError)):
        child.receive()
    child.process.wait()
    assert child.end() == how


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert runs_on(pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 60
    while runs_on(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_is_for_the_parent() -> None:
    child = ChildProcess("echo")
    child.send("one")
    assert child.receive()[0] == "one"
    child.process.send_signal(signal.SIGINT)
    child.send("two")
    assert child.receive()[0] == "two"
    child.end()
