"""Claims: who does which run, among processes that may die at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.io.locks import this_process
from fusionkit.runs.claims import Claims, runs_status
from fusionkit.runs.folder import UNIT
from fusionkit.store import Store

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
HOLD = """
import sys, time
from pathlib import Path
from fusionkit.runs.claims import Claims
claims = Claims(Path(sys.argv[1]), "somebody else")
assert claims.take(sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def claims_of(runs: Path) -> Iterator[Callable[[str], Claims]]:
    """Claims on the folder by a name, given up at the end."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(Claims(runs, name)))


def held_elsewhere(runs: Path, digest: str) -> subprocess.Popen[str]:
    """Another process that holds a claim."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(runs), digest], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_claim_is_one_processes_until_it_is_given_up(claims_of: Callable[[str], Claims]) -> None:
    mine, theirs = claims_of("me"), claims_of("them")
    assert mine.take(RUN)
    assert mine.take(RUN)  # it has it already
    assert not theirs.take(RUN)
    assert theirs.take(OTHER)
    assert (theirs.holder(RUN), mine.holder(OTHER)) == ("me", "them")
    mine.release(RUN)
    assert theirs.holder(RUN) is None
    assert theirs.take(RUN)


def test_a_claim_goes_with_its_process_however_that_ends(runs: Path, claims_of: Callable[[str], Claims]) -> None:
    claims, process = claims_of("me"), held_elsewhere(runs, RUN)
    assert not claims.take(RUN)
    assert claims.holder(RUN) == "somebody else"
    kill(process)
    assert (runs / ".claims" / RUN).exists()  # its file is still there, and nobody's
    assert claims.holder(RUN) is None
    assert claims.take(RUN)


def test_the_folder_of_claims_goes_with_the_last_one(runs: Path, claims_of: Callable[[str], Claims]) -> None:
    mine, theirs = claims_of("me"), claims_of("them")
    assert mine.locks_work()
    assert mine.take(RUN)
    assert theirs.take(OTHER)
    mine.close()
    assert [path.name for path in (runs / ".claims").iterdir()] == [OTHER]
    theirs.close()
    assert not runs.exists()  # nor was it there before
    assert theirs.take(OTHER)  # and comes again


def test_whoever_closes_sweeps_up_after_the_dead_and_leaves_the_living_alone(
    runs: Path, claims_of: Callable[[str], Claims]
) -> None:
    kill(held_elsewhere(runs, RUN))
    living, closed = claims_of("them"), claims_of("me")
    assert living.take(OTHER)
    closed.close()
    assert [path.name for path in (runs / ".claims").iterdir()] == [OTHER]


def test_a_run_that_is_claimed_is_running_and_the_mark_of_a_unit_is_no_run(
    runs: Path, claims_of: Callable[[str], Claims]
) -> None:
    claims = claims_of("me")
    assert claims.take(RUN)
    assert claims.take(f"{UNIT}1")
    (runs / ".claims" / OTHER).touch()  # left by the dead
    assert runs_status(RunsFolder(runs))["running"] == {"me": 1}
    claims.release(RUN)  # stopped before a run was done
    none: dict[str, Any] = {"finished": 0, "stopped": 0, "broken_off": 0, "running": {}, "failed": []}
    assert runs_status(RunsFolder(runs)) == {"path": str(runs), **none}


def test_a_folder_with_claims_alone_may_keep_runs(runs: Path, claims_of: Callable[[str], Claims]) -> None:
    assert claims_of("me").take(RUN)
    RunsFolder(runs).claim()
    (runs / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no folder of runs"):
        RunsFolder(runs).claim()


def test_runs_that_another_process_is_at_are_waited_for_and_taken_over_when_it_dies(
    corpus_store: Callable[[str], Store], runs: Path, watch: Any
) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("last", "linear"), epochs=(1,))
    process = held_elsewhere(runs, specs[0].digest)
    say = watch.say

    def let_it_die(line: str) -> None:
        say(line)
        if line.startswith("waiting for"):
            assert [record["spec"]["fusion"] for record in watch.ended] == ["linear"]
            kill(process)

    watch.say = let_it_die
    records = fit(store, specs, RunsFolder(runs), watch)
    assert watch.said[-3:] == [
        "somebody else does runs of this sweep too: those are not done here",
        "waiting for 1 run of somebody else",
        "somebody else has left 1 run undone: done here",
    ]
    assert [record["spec"]["fusion"] for record in records] == ["last", "linear"]
    assert [record["spec"]["fusion"] for record in watch.ended] == ["linear", "last"]
    assert watch.epochs == 2
    assert not (runs / ".claims").exists()


def test_a_run_that_another_process_has_done_meanwhile_is_not_done_again(
    corpus_store: Callable[[str], Store], runs: Path, watch: Any
) -> None:
    store = corpus_store("words")
    first, last = expand(store, task="tagging", fusions=("last",), batch_sizes=(4, 8), epochs=(1,))
    folder, run = RunsFolder(runs), watch.run

    def as_if_by_another(record: dict[str, Any]) -> None:
        run(record)
        folder.write(last, {**record, "spec": last.to_dict()}, {})

    watch.run = as_if_by_another
    # Batches of two sizes are two units: the second is looked at when the first has ended.
    fit(store, [first, last], folder, watch)
    assert [record["spec"]["batch_size"] for record in watch.ended] == [4]
    assert [record["spec"]["batch_size"] for record in watch.others] == [8]


def test_a_failed_run_that_another_process_has_retried_and_finished_meanwhile_is_kept(
    corpus_store: Callable[[str], Store], runs: Path, watch: Any
) -> None:
    store, folder = corpus_store("words"), RunsFolder(runs)
    retried, finished = expand(store, task="tagging", fusions=("last", "linear"), epochs=(1,))
    record = {"status": "finished", "data": "corpus", "metric": "f1", "score": 0.5}
    folder.write(finished, {**record, "spec": finished.to_dict()}, {})
    folder.write(retried, {**record, "status": "failed", "error": "lost", "spec": retried.to_dict()}, {})

    def as_if_by_another(line: str) -> None:
        if line == "1 of 2 runs there already":  # said between the look at what is there and the first run
            folder.write(retried, {**record, "score": 0.75, "spec": retried.to_dict()}, {})

    watch.say = as_if_by_another
    records = fit(store, [retried, finished], folder, watch, retry_failed=True)
    assert [each["score"] for each in records] == [0.75, 0.5]
    assert watch.ended == []
    assert [each["spec"]["fusion"] for each in watch.others] == ["last"]


def test_what_a_killed_process_left_half_written_is_removed_with_the_next_attempt(
    corpus_store: Callable[[str], Store], runs: Path, watch: Any
) -> None:
    store = corpus_store("words")
    (spec,) = expand(store, task="tagging", fusions=("last",), epochs=(1,))
    (runs / spec.digest).mkdir(parents=True)
    (runs / spec.digest / ".weights.safetensors.7.partial").write_bytes(b"half")
    fit(store, [spec], RunsFolder(runs), watch)
    there = sorted(path.name for path in (runs / spec.digest).iterdir())
    assert there == ["answers.safetensors", "run.json", "weights.safetensors"]


def test_others_are_told_of_the_process_and_its_machine() -> None:
    assert this_process() == f"process {os.getpid()} on {os.uname().nodename}"


def test_a_folder_that_another_sweep_removes_meanwhile_is_a_new_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.mkdir(exist_ok=True)
    monkeypatch.setattr("fusionkit.runs.folder.is_runs", lambda path: path.rmdir())
    RunsFolder(runs).claim()
    assert not runs.exists()
