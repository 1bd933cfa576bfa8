"""Sweeps in processes of their own, and a look at these processes from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.store import Store

SWEEPER = Path(__file__).with_name("sweeper.py")
PATIENCE = 180.0  # seconds
TIMES = ("seconds", "epoch_seconds", "seconds_alone", "peak_memory")


@dataclass(frozen=True)
class Sweeper:
    """A sweep that runs."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> list[tuple[str, Any]]:
        """What it had said when it ended."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        return [(what, value) for what, value in map(json.loads, out.splitlines())]


def start(store: Store, runs: Path, specs: Sequence[RunSpec], workers: int, pause: float = 0.0) -> Sweeper:
    """Begin a sweep that waits ``pause`` seconds after each run; errors go to its output."""
    listed = runs.with_name(f"{runs.name}.{len(specs)}.json")
    listed.write_text(json.dumps([spec.to_dict() for spec in specs]))
    given = map(str, (store.path, runs, workers, listed, pause))
    return Sweeper(subprocess.Popen([sys.executable, str(SWEEPER), *given], stdout=subprocess.PIPE, text=True))


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def runs_on(pid: int) -> bool:
    """Whether a process is there and not dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def holds(pid: int, path: Path) -> bool:
    """Whether a process has a file open."""
    try:
        return any(each.readlink() == path for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def until(happened: Callable[[], Any]) -> Any:
    """Wait for something, and what it is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return found


def ended(runs: Path) -> set[str]:
    """The runs that have a record."""
    return {path.parent.name for path in RunsFolder(runs).record_files()}


def kept(runs: Path) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Record, but for its times, and weights of each run."""
    found = {}
    for path in runs.glob("*/run.json"):
        record = json.loads(path.read_text())
        weights = path.with_name("weights.safetensors")
        found[path.parent.name] = (
            {name: value for name, value in record.items() if name not in TIMES},
            weights.read_bytes() if weights.exists() else b"",
        )
    return found


def leftovers(runs: Path) -> list[Path]:
    """Claims and half-written files."""
    return [*runs.glob(".claims/*"), *runs.rglob("*.partial")]
