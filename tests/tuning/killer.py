"""Trains runs in forked children, each killed at a random moment, until one comes to the end.

    killer.py STORE,… FOLDER KILLS SEED SPECS.json

Imports are loaded once; each child runs the real :func:`fusionkit.fit.fit` and keeps its state after every second step.
Run k of the list is there undisturbed at ``FOLDER/k/whole`` and killed at ``FOLDER/k/killed``. What is said, as JSON:
for each run, how many steps were done in the state that each killed child left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from fusionkit.dataset.stores import source_of
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.executor.through_encoder import trainer
from fusionkit.specs import RunSpec
from fusionkit.store import open_store
from fusionkit.tuning.encoder import load_tuned
from fusionkit.tuning.state import read_state

STORE, FOLDER, KILLS, SEED, SPECS = sys.argv[1:]
torch.set_num_threads(1)
stores = {store.digest: store for store in map(open_store, STORE.split(","))}
rng, listed = random.Random(int(SEED)), json.loads(Path(SPECS).read_text())
# What each child would import anew: the trainer, and the encoder's code.
trainer()
first = RunSpec.from_dict(listed[0])
assert load_tuned(source_of(first, stores), first, torch.device("cpu"))


def begin(spec: RunSpec, out: Path) -> int:
    """A process that trains the run; its exit status is 0 when it came to the end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (record,) = fit(source_of(spec, stores), [spec], RunsFolder(out), save_every="2")
            status = int(record["status"] != "finished")
        finally:
            os._exit(status)
    return child


def to_the_end(spec: RunSpec, out: Path) -> float:
    """The seconds of a run that nobody kills."""
    began = time.perf_counter()
    _, status = os.waitpid(begin(spec, out), 0)
    assert status == 0, f"a run failed in {out}"
    return time.perf_counter() - began


def kept(path: Path) -> int:
    """When a file was written, 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def killed(spec: RunSpec, out: Path, seconds: float) -> int:
    """The steps in the state that a child leaves; it is killed a random time, of so many seconds at most, after it has
    kept its first state.
    """
    path = RunsFolder(out).state_path(spec)
    before, child = kept(path), begin(spec, out)
    while kept(path) == before:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "a child ended before it kept a state"
        time.sleep(0.001)
    time.sleep(rng.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    state = read_state(path)
    assert state is not None, "a child came to its end"
    return int(state.values["done"])


found = []
for number, values in enumerate(listed):
    spec, folder = RunSpec.from_dict(values), Path(FOLDER) / str(number)
    to_the_end(spec, folder / "whole")
    (path,) = (folder / "whole").glob("*/run.json")
    training = json.loads(path.read_text())["epoch_seconds"][-1]
    # Of each the random time is short beside what is left, so that the last one finds something to do.
    found.append([killed(spec, folder / "killed", training / (2 * int(KILLS))) for _ in range(int(KILLS))])
    to_the_end(spec, folder / "killed")
print(json.dumps(found))
