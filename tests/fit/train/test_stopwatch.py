"""What runs that are trained together are charged."""

from __future__ import annotations

import time

import pytest

from fusionkit.fit.train.stopwatch import Stopwatch
from fusionkit.machine.devices import CPU


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_stack_s_seconds_are_its_runs_alone_and_the_rest_goes_by_rows(clock: list[float]) -> None:
    watch = Stopwatch(CPU)
    clock[0] += 3  # reading
    with watch.of(["a", "b"]):
        clock[0] += 4
    with watch.of(["c"]):
        clock[0] += 10
    assert watch.read({"a": 1, "b": 2, "c": 3}) == {"a": 2.5, "b": 3, "c": 11.5}


def test_it_begins_anew_when_it_is_read(clock: list[float]) -> None:
    watch = Stopwatch(CPU)
    with watch.of(["a"]):
        clock[0] += 1
    assert watch.read({"a": 1}) == {"a": 1}
    clock[0] += 5
    watch.begin()
    clock[0] += 2
    assert watch.read({"a": 0, "b": 0}) == {"a": 1, "b": 1}  # nobody reads: even shares


def test_seconds_of_work_side_by_side_come_to_those_that_passed(clock: list[float]) -> None:
    watch = Stopwatch(CPU)
    watch._work = [(["a"], 6.0), (["b"], 2.0)]  # as kernels on two streams may tell
    clock[0] += 4
    assert watch.read({"a": 1, "b": 1}) == {"a": 3, "b": 1}
