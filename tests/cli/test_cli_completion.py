"""Help and completion: what a shell is offered, and that neither waits for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusionkit import names
from fusionkit.cli.main import COMMANDS

HEAVY = ("torch", "transformers", "datasets", "zarr", "numpy", "pandas", "scipy", "sklearn", "dask")
# A completion of everything: the commands, and behind each all of its options and its argument; then the helps.
ALL = """
import os, sys
from fusionkit.cli.main import COMMANDS, main
os.environ["_FUSIONKIT_COMPLETE"] = "bash_complete"
lines = ["fusionkit ", *(f"fusionkit {name} {begun}" for name in COMMANDS for begun in ("", "--"))]
lines += ["fusionkit fit my.store --fusion ", "fusionkit fit --head ", "fusionkit fit --task ", "fusionkit nothing --"]
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
"""


def test_help_and_completion_of_every_command_load_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", ALL % (HEAVY,)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[-1] == "loaded []"
    assert [line for line in lines if line.startswith("ended")].count("ended 0") == 1 + 2 * len(COMMANDS) + 4 + 1 + len(
        COMMANDS
    )
    offered = {line.removeprefix("plain,") for line in lines if line.startswith("plain,")}
    assert {*COMMANDS, *names.FUSIONS, *names.HEADS, *names.TASKS, "--print-job", "--compute-dtype"} <= offered


def test_a_real_bash_completes_commands_options_and_fusions(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "fusionkit"  # as an installation writes it, for this very interpreter and tree
    command.parent.mkdir()
    # As pip does it: no path with a space can stand behind #!, so a shell begins and starts Python over this very file.
    start = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    command.write_text(f"{start}from fusionkit.cli.main import main\n\nmain()\n")
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
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
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_script(shell: str) -> None:
    environment = {**os.environ, "_FUSIONKIT_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['fusionkit']; from fusionkit.cli.main import main; main()"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert f"_FUSIONKIT_COMPLETE={shell}_complete" in done.stdout
