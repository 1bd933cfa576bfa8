"""Help and completion: what a shell is offered, and that neither waits for torch."""

from __future__ import annotations

import functools
import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fusionkit import names
from fusionkit.cli.main import COMMANDS
from fusionkit.fusions import FUSIONS
from fusionkit.heads import HEADS, LM_HEADS

HEAVY = ("torch", "transformers", "datasets", "zarr", "numpy", "pandas", "scipy", "sklearn", "dask")
# A completion of everything: the commands, and behind each all of its options and its argument; then the helps.
ALL = """
import os, sys
from fusionkit.cli.main import COMMANDS, main
os.environ["_FUSIONKIT_COMPLETE"] = "bash_complete"
lines = ["fusionkit ", *(f"fusionkit {name} {begun}" for name in COMMANDS for begun in ("", "--"))]
lines += [f"fusionkit fit --{option} " for option in ("fusion", "head", "method", "task")] + ["fusionkit nothing --"]
helps = [["--help"], *([name, "--help"] for name in COMMANDS)]
for line in [*lines, None, *helps]:
    if line is None:
        del os.environ["_FUSIONKIT_COMPLETE"]
        continue
    sys.argv = ["fusionkit", *(line if isinstance(line, list) else [])]
    if isinstance(line, str):
        os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    try:
        main()
    except SystemExit as ended:
        print("ended", ended.code)
print("loaded", sorted(set(sys.modules) & set(%r)))
"""
# What bash has after `fusionkit …<TAB>`; COMP_WORDS are as readline splits them.
BASH = """
eval "$(_FUSIONKIT_COMPLETE=bash_source fusionkit)"
complete -p fusionkit
offered() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _fusionkit_completion fusionkit; echo "${COMPREPLY[*]}"
}
offered fusionkit es
offered fusionkit fit --wei
offered fusionkit fit my.store --fusion d
offered fusionkit fit --head bilstm
offered fusionkit fit --method hou
"""
FISH = """
_FUSIONKIT_COMPLETE=fish_source fusionkit | source
complete -C "fusionkit es"
complete -C "fusionkit fit --wei"
complete -C "fusionkit fit my.store --fusion d"
complete -C "fusionkit fit --head bilstm"
"""
# The last line shows what was typed, and then what it prints: only that is the word that is waited for.
ZSH = """autoload -Uz compinit && compinit -u
eval "$(_FUSIONKIT_COMPLETE=zsh_source fusionkit)"
echo rea''dy-now
"""


def test_help_and_completion_of_every_command_load_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", ALL % (HEAVY,)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[-1] == "loaded []"
    assert [line for line in lines if line.startswith("ended")].count("ended 0") == 1 + 2 * len(COMMANDS) + 5 + 1 + len(
        COMMANDS
    )
    offered = {line.removeprefix("plain,") for line in lines if line.startswith("plain,")}
    assert {*COMMANDS, *FUSIONS, *HEADS, *LM_HEADS, *names.TASKS, "--print-job", "--compute-dtype"} <= offered


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables with a ``fusionkit`` on the path, for this very interpreter and tree."""
    command = tmp_path / "bin" / "fusionkit"  # as an installation writes it
    command.parent.mkdir()
    # As pip does it: no path with a space can stand behind #!, so a shell begins and starts Python over this very file.
    start = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    command.write_text(f"{start}from fusionkit.cli.main import main\n\nmain()\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if name != "ZDOTDIR"}
    return {**own, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}


@functools.cache
def found(name: str) -> str | None:
    """A shell of this machine, installed where that is needed and possible; None where there is none."""
    if shutil.which(name) is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--yes", "--no-install-recommends", name]):
            if subprocess.run(["apt-get", *words], env=quiet, capture_output=True).returncode:
                return None
    return shutil.which(name)


def shell(name: str) -> str:
    """The same; without it a test is left out."""
    program = found(name)
    if program is None:
        pytest.skip(f"no {name}, and no apt-get as root to install it")
    return program


def test_a_real_bash_completes_commands_options_and_fusions(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _fusionkit_completion fusionkit",
        "estimate",
        "--weight-decay",
        "dwatt depth-lstm",
        "bilstm-crf",
        "houlsby",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_script(shell: str) -> None:
    environment = {**os.environ, "_FUSIONKIT_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['fusionkit']; from fusionkit.cli.main import main; main()"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert f"_FUSIONKIT_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.soak("products")
def test_a_real_fish_completes_the_same(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [shell("fish"), "--no-config", "-c", FISH], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert offered == ["estimate", "--weight-decay", "depth-lstm", "dwatt", "bilstm-crf"]


@pytest.mark.soak("products")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [("fusionkit es", "timate"), ("fusionkit fit --wei", "ght-decay"), ("fusionkit fit --head bilstm", "-crf")],
)
def test_a_real_zsh_completes_what_is_typed(
    typed: str, completed: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """At a terminal: zsh's completion has no other way in."""
    program = shell("zsh")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program, "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            os.write(ours, ZSH.encode())
            assert "ready-now" in read_until(ours, "ready-now")
            os.write(ours, f"{typed}\t".encode())
            assert completed in read_until(ours, completed)
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, text: str) -> str:
    """What a terminal shows until it shows this; all that came where it never does."""
    seen = ""
    while text not in seen and select.select([terminal], [], [], 30)[0]:
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the shell has ended
            break
    return seen
