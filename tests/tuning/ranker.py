"""Trains runs alone, then by forked ranks that join as torchrun's processes do.

    ranker.py STORE[,STORE…] FOLDER RANKS SPECS.json STOP

Run k of the list is trained by one process at ``FOLDER/k/1`` and by so many at ``FOLDER/k/RANKS``. Imports are loaded
once. Every second step keeps a state; unless STOP is 0 the ranks find one that a process alone left after that step.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import torch

from fusionkit.dataset.stores import source_of
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.progress import FitProgress
from fusionkit.machine.devices import CPU
from fusionkit.specs import RunSpec
from fusionkit.store import open_store
from fusionkit.tuning import trainer
from fusionkit.tuning.encoder import load_tuned
from fusionkit.tuning.ranks import joined

STORE, FOLDER, RANKS, SPECS, STOP = sys.argv[1:]
torch.set_num_threads(1)
specs = [RunSpec.from_dict(values) for values in json.loads(Path(SPECS).read_text())]
stores = {each.digest: each for each in map(open_store, STORE.split(","))}
store = source_of(specs[0], stores)
assert load_tuned(store, specs[0], CPU)  # each rank would import the encoder's code anew


class StoppedError(Exception):
    """A process ends in the middle of a run."""


class Stopping(FitProgress):
    """Who watches a sweep, and ends it after so many steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, work: float, text: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise StoppedError


def train(place: str) -> None:
    """All runs, each in a folder of its own."""
    for number, spec in enumerate(specs):
        folder = RunsFolder(Path(FOLDER) / str(number) / place)
        (record,) = fit(store, [spec], folder, save_every="2")
        assert record["status"] == "finished", record


def leave_states() -> None:
    """Of each run, what a process leaves that is stopped."""
    trainer.TELL_SECONDS = 0.0  # every step is told
    for number, spec in enumerate(specs):
        folder = RunsFolder(Path(FOLDER) / str(number) / RANKS)
        try:
            fit(store, [spec], folder, Stopping(int(STOP)), save_every="2")
        except StoppedError:
            assert folder.state_path(spec).is_file()


def begin(rank: int, port: int) -> int:
    """The process of a rank."""
    if child := os.fork():
        return child
    status = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": RANKS}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with joined("cpu") as (ranks, _):
            if ranks.rank:
                trainer.follow(SweepContext(store, device=CPU))
            else:
                train(RANKS)
                ranks.announce(None)
        status = 0
    finally:
        os._exit(status)


if int(STOP):
    leave_states()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
children = [begin(rank, port) for rank in range(int(RANKS))]
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
train("1")
