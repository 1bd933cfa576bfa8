"""What runs that are trained together are charged."""

from __future__ import annotations

import time

import pytest
import torch

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


def test_a_gpu_s_work_is_timed_on_the_stream_that_its_device_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stream an event is recorded on the first GPU."""
    seen = list[object]()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object = None) -> None:
            seen.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    with Stopwatch(torch.device("cuda:1")).of(["a"]):
        pass
    assert seen == ["stream of cuda:1", "stream of cuda:1"]
