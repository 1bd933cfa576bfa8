"""A sweep in a process of its own; it says what it sees, a JSON line each.

    sweeper.py STORE RUNS WORKERS SPECS.json PAUSE

After each run it waits PAUSE seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.progress import FitProgress
from fusionkit.specs import RunSpec
from fusionkit.store import open_store

STORE, RUNS, WORKERS, SPECS, PAUSE = sys.argv[1:]


def tell(what: str, value: Any) -> None:
    print(json.dumps([what, value]), flush=True)


class Teller(FitProgress):
    """Passes on what it is told."""

    def begin(self, runs: int, epochs: int, work: Any) -> None:
        tell("begin", runs)

    def run(self, record: dict[str, Any]) -> None:
        tell("run", RunSpec.from_dict(record["spec"]).digest)
        time.sleep(float(PAUSE))

    def elsewhere(self, record: dict[str, Any]) -> None:
        tell("elsewhere", RunSpec.from_dict(record["spec"]).digest)

    def say(self, line: str) -> None:
        tell("say", line)


# No guard around it: workers are not this script once more.
torch.set_num_threads(1)
specs = [RunSpec.from_dict(values) for values in json.loads(Path(SPECS).read_text())]
records = fit(open_store(STORE), specs, RunsFolder(Path(RUNS)), Teller(), workers=int(WORKERS))
tell("records", [record["status"] for record in records])
