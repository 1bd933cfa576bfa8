"""A sweep's schedule with an executor that the test scripts: what it does on which events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.fit import RunsFolder
from fusionkit.fit.executor.scheduler import Schedule
from fusionkit.fit.executor.unit_job import Event, guard_of
from fusionkit.fit.executor.units import plan_units
from fusionkit.fit.train.halving import rivals_of
from fusionkit.runs.claims import Claims
from fusionkit.specs import RunSpec

ONE, OTHER = (
    RunSpec(store="s", task="tagging", label="tags", fusion=fusion, head="tagger") for fusion in ("last", "linear")
)
NOTHING: Any = SimpleNamespace(halving=False)  # no unit is trained, so nothing else of a context is asked for


class ScriptedExecutor:
    """An executor that is free for one unit at a time and does what the test says.

    Args:
        steps: one a unit, called with its runs.
    """

    def __init__(self, *steps: Callable[[Sequence[RunSpec]], None]) -> None:
        self._steps = list(steps)
        self.given: list[list[str]] = []
        self.free = True

    def give(self, specs: Sequence[RunSpec]) -> None:
        self.given.append([spec.fusion for spec in specs])
        self._steps.pop(0)(specs)

    def wait(self, seconds: float) -> None:
        time.sleep(0.01)

    def close(self) -> None:
        pass


@pytest.fixture
def runs(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path / "runs")


@pytest.fixture
def claims(runs: RunsFolder) -> Iterator[Claims]:
    with closing(Claims(runs.path, "me")) as claims:
        yield claims


def keep(runs: RunsFolder, spec: RunSpec, status: str = "finished") -> None:
    runs.write(spec, {"spec": spec.to_dict(), "status": status}, {})


def event_of(kind: str, specs: Sequence[RunSpec], text: str = "") -> Event:
    return Event(kind, tuple(spec.digest for spec in specs), text=text)


@pytest.mark.parametrize("kind", ["run", "there"])
def test_a_run_whose_record_has_gone_again_is_done_once_more(
    runs: RunsFolder, claims: Claims, watch: Any, kind: str
) -> None:
    """Another process that tries failed runs again removed it between the event and the look at it."""
    schedule = Schedule(plan_units([ONE]), 8, NOTHING, runs, claims, watch)

    def end(specs: Sequence[RunSpec]) -> None:
        keep(runs, specs[0])
        schedule.on_event(event_of("run", specs))

    executor = ScriptedExecutor(lambda specs: schedule.on_event(event_of(kind, specs)), end)
    schedule.work(executor)
    assert executor.given == [["last"], ["last"]]
    assert [record["spec"]["fusion"] for record in watch.ended] == ["last"]
    assert watch.others == []


def test_what_this_command_did_of_a_lost_run_still_counts(runs: RunsFolder, claims: Claims, watch: Any) -> None:
    watch.resumed = (told := list[float]()).append
    schedule = Schedule(plan_units([ONE]), 8, NOTHING, runs, claims, watch)

    def lose(specs: Sequence[RunSpec]) -> None:
        schedule.on_event(Event("resumed", work=60.0, text=ONE.digest))
        schedule.on_event(event_of("lost", specs, "SIGKILL"))

    def end(specs: Sequence[RunSpec]) -> None:
        schedule.on_event(Event("resumed", work=80.0, text=ONE.digest))
        keep(runs, specs[0])
        schedule.on_event(event_of("run", specs))

    schedule.work(ScriptedExecutor(lose, end))
    assert told == [60.0]


def test_runs_that_compete_with_another_process_s_wait_for_it(runs: RunsFolder, claims: Claims, watch: Any) -> None:
    """It has claimed them together, and has not claimed each by itself yet."""
    halving: Any = SimpleNamespace(halving=True)
    schedule = Schedule(plan_units([ONE], 8, True), 8, halving, runs, claims, watch)
    with closing(Claims(runs.path, "somebody else")) as theirs:
        assert theirs.take(guard_of(rivals_of(ONE)))
        assert schedule._free([ONE]) == []
        theirs.close()
    assert schedule._free([ONE]) == [ONE]
    assert watch.said == ["somebody else does runs of this sweep too: those are not done here"]


def test_a_run_that_others_do_is_not_blamed_for_a_loss(runs: RunsFolder, claims: Claims, watch: Any) -> None:
    """Its worker died before it could tell whose the run was."""
    schedule = Schedule(plan_units([ONE, OTHER]), 8, NOTHING, runs, claims, watch)
    with closing(Claims(runs.path, "somebody else")) as theirs:

        def lose(specs: Sequence[RunSpec]) -> None:
            assert theirs.take(ONE.digest)
            schedule.on_event(event_of("lost", specs, "SIGKILL"))

        def end(specs: Sequence[RunSpec]) -> None:
            keep(runs, specs[0])
            schedule.on_event(event_of("run", specs))
            keep(runs, ONE)
            theirs.release(ONE.digest)

        executor = ScriptedExecutor(lose, end)
        schedule.work(executor)
    assert executor.given == [["last", "linear"], ["linear"]]
    assert watch.said[:2] == [
        "somebody else does runs of this sweep too: those are not done here",
        "1 run lost, tried again once more: SIGKILL",
    ]
    assert [record["spec"]["fusion"] for record in watch.ended] == ["linear"]
    assert [record["spec"]["fusion"] for record in watch.others] == ["last"]
