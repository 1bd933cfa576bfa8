"""Several processes on one folder of runs, and processes killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.specs import RunSpec
from fusionkit.store import Store

SEED, SOAK = 7, pytest.mark.soak("kills")


@pytest.fixture(scope="module")
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


@pytest.fixture(scope="module")
def specs(store: Store) -> list[RunSpec]:
    choices: dict[str, Any] = {"fusions": ("linear", "attention"), "shots": (None, 1), "batch_sizes": (1, 2, 3, 4, 8)}
    return expand(store, task="tagging", head="crf", seeds=3, dropout=0.1, epochs=(10,), **choices)  # ten units


@pytest.fixture(scope="module")
def undisturbed(store: Store, specs: list[RunSpec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("undisturbed") / "runs"

    fit(store, specs, RunsFolder(runs))
    return runs


def assert_same(runs: Path, undisturbed: Path, sweeping: Any) -> None:
    assert sweeping.kept(runs) == sweeping.kept(undisturbed)
    assert sweeping.leftovers(runs) == []
    table = pd.read_parquet(runs / "results.parquet")
    assert len(table) == len(pd.read_parquet(undisturbed / "results.parquet"))


def test_two_processes_share_a_sweep_and_do_no_run_twice(
    store: Store, specs: list[RunSpec], tmp_path: Path, sweeping: Any
) -> None:
    """The first waits after each run, so that some are left when the other's workers have started."""
    short, runs = [replace(spec, epochs=1) for spec in specs], tmp_path / "runs"
    fit(store, short, RunsFolder(tmp_path / "undisturbed"))
    sweeps = [sweeping.start(store, runs, short, workers, pause) for workers, pause in ((1, 0.3), (2, 0.0))]
    told = [sweep.end() for sweep in sweeps]
    done = [[value for what, value in said if what == "run"] for said in told]
    seen = [[value for what, value in said if what == "elsewhere"] for said in told]
    assert Counter(done[0] + done[1]) == Counter(spec.digest for spec in short)
    for ours, theirs, said in zip(done, seen, told, strict=True):
        begun = next(value for what, value in said if what == "begin")
        assert len(ours) + len(theirs) == begun
        assert said[-1] == ("records", ["finished"] * len(short))  # each ends with the whole table
    assert min(map(len, done)) > 0, "one process did everything"
    assert_same(runs, tmp_path / "undisturbed", sweeping)


@pytest.mark.soak("kills")
def test_what_a_killed_process_leaves_is_done_by_the_other(
    store: Store, specs: list[RunSpec], undisturbed: Path, tmp_path: Path, sweeping: Any
) -> None:
    runs = tmp_path / "runs"
    doomed = sweeping.start(store, runs, specs, 1)
    sweeping.until(lambda: sweeping.ended(runs))
    other = sweeping.start(store, runs, list(reversed(specs)), 1)
    before = sweeping.ended(runs)
    sweeping.until(lambda: len(sweeping.ended(runs) - before) > 2)
    os.kill(doomed.pid, signal.SIGKILL)
    done = [value for what, value in doomed.end() if what == "run"]
    told = other.end()
    assert told[-1] == ("records", ["finished"] * len(specs))
    # The one that was killed may have kept a run that it could no longer tell of.
    assert len(specs) - 1 <= len({*done, *(value for what, value in told if what == "run")})
    assert_same(runs, undisturbed, sweeping)


@SOAK
@pytest.mark.parametrize(("workers", "seed"), [(1, SEED), *((w, s) for w in (1, 2) for s in range(8))])
def test_a_sweep_killed_at_any_moments_ends_with_the_same_records_and_weights(
    store: Store, specs: list[RunSpec], undisturbed: Path, tmp_path: Path, sweeping: Any, workers: int, seed: int
) -> None:
    """Three attempts go on with what the one before has left; each is killed a random while after some runs."""
    runs, rng = tmp_path / "runs", random.Random(seed + workers)
    left = []
    for _ in range(3):
        before = sweeping.kept(runs)
        least = len(before) + rng.randint(1, 6)
        sweep = sweeping.start(store, runs, specs, workers)
        sweeping.until(lambda least=least: len(sweeping.ended(runs)) >= least)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.end()
        after = sweeping.kept(runs)
        assert {digest: after[digest] for digest in before} == before
        left.append(len(specs) - len(after))
    assert [len(specs), *left] == sorted({len(specs), *left}, reverse=True)
    assert left[-1] > 0, "the kills came too late"
    told = sweeping.start(store, runs, specs, workers).end()
    assert len([value for what, value in told if what == "run"]) == left[-1]
    assert_same(runs, undisturbed, sweeping)
