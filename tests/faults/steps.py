"""Commands in forked children, each killed before one of its steps on the disk.

    steps.py FOLDER EVERY COMMANDS.json [MODULE …]        COMMANDS: {name: words of a command}

A step is a call that changes files: a sync, a rename, a removal, a new folder. Child n of a command is killed before
its step n, over a fresh copy of FOLDER/before, at FOLDER/{name}-{n}. Of the steps every EVERYth is taken, the last four
renames, and what follows the last. Modules are imported once, before all children. What is printed is, for each
command, the steps at which it was killed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fusionkit.cli.commands
import fusionkit.exported.head
import fusionkit.report.write  # noqa: F401  what the commands would import, each child anew
from fusionkit.cli.main import main
from fusionkit.report.altair import altair, vl_convert

FOLDER, EVERY, COMMANDS = Path(sys.argv[1]), int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
STEPS = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")


def killed_before(last: int, seen: list[str]) -> None:
    """Count this process's steps into ``seen``, and kill it before that one; -1 is none."""

    def step(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **how: Any) -> Any:
            if len(seen) == last:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(name)
            return do(*args, **how)

        return counted

    for name in STEPS:
        setattr(os, name, step(name, getattr(os, name)))


def child(place: Path, words: list[str], last: int) -> int:
    """The status of a child that runs a command over a fresh copy; its steps go to a file beside."""
    shutil.copytree(FOLDER / "before", place)
    if (pid := os.fork()) == 0:
        seen: list[str] = []
        os.chdir(place)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.argv = ["fusionkit", *words]
        killed_before(last, seen)
        code = 1
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        (place.parent / f"{place.name}.steps").write_text(json.dumps(seen))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def chosen(steps: list[str]) -> list[int]:
    """The steps to kill before."""
    renames = [at for at, name in enumerate(steps) if name in ("replace", "rename")][-4:]
    return sorted({*renames, renames[-1] + 1, *range(EVERY // 2, len(steps), EVERY)})


for module in sys.argv[4:]:
    importlib.import_module(module)
torch.set_num_threads(1)
altair(), vl_convert()
told = {}
for name, words in COMMANDS.items():
    whole = FOLDER / f"{name}-whole"
    assert child(whole, words, -1) == 0, name
    steps = json.loads((FOLDER / f"{name}-whole.steps").read_text())
    told[name] = chosen(steps)
    for at in told[name]:
        assert child(FOLDER / f"{name}-{at}", words, at) == -signal.SIGKILL, (name, at)
print(json.dumps(told))
