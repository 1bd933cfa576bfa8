"""The events that a cluster's worker reports while a unit goes on and at its end, and what a schedule makes of both."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.cluster import fit_job
from fusionkit.cluster.fit_job import FitJob, do_unit_here
from fusionkit.fit import RunsFolder
from fusionkit.fit.executor import scheduler
from fusionkit.fit.executor.scheduler import Schedule
from fusionkit.fit.executor.unit_job import Event, OnEvent
from fusionkit.fit.executor.units import plan_units
from fusionkit.runs.claims import Claims
from fusionkit.specs import RunSpec

SPEC = RunSpec(store="s", task="tagging", label="tags", fusion="last", head="tagger")
NOTHING: Any = SimpleNamespace(halving=False)  # no unit is trained, so nothing else of a context is asked for


class Reporter:
    """``report(*events)``: a unit with these events; those that are sent at once, and those that its task returns."""

    def __init__(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._runs, self._patch = runs, monkeypatch
        self.sent: list[Event] = []

    def report(self, *given: Event) -> list[Event]:
        def run(specs: Any, on_event: OnEvent) -> None:
            for event in given:
                on_event(event)

        def log_event(topic: str, message: dict[str, Any]) -> None:
            self.sent.append(Event(**json.loads(json.dumps(message["event"]))))

        self._patch.setattr(fit_job, "get_worker", lambda: SimpleNamespace(log_event=log_event))
        self._patch.setattr(fit_job, "_runner", lambda job: SimpleNamespace(run=run))
        return [Event(**values) for values in do_unit_here(FitJob("job", {}, str(self._runs), 1), "unit", [])]


@pytest.fixture
def reporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reporter:
    return Reporter(tmp_path / "runs", monkeypatch)


def test_what_would_count_twice_is_sent_or_returned_and_not_both(reporter: Reporter) -> None:
    events = [
        Event("others", ["a"], text="somebody"), Event("there", ["b"]), Event("note", [], text="slow"),
        Event("epochs", [], count=1, work=2.0), Event("resumed", [], work=3.0), Event("step", [], work=1.0),
        Event("run", ["c"]), Event("lost", ["d"], text="out of memory"),
    ]  # fmt: skip
    assert reporter.report(*events) == [event for event in events if event.kind not in ("epochs", "step", "resumed")]
    assert reporter.sent == [event for event in events if event.kind not in ("others", "lost")]


def test_a_run_whose_memory_did_not_suffice_once_is_tried_once_more(reporter: Reporter, tmp_path: Path) -> None:
    """The run is given to another worker as soon as its loss is reported; the other events come later."""
    runs, said = RunsFolder(tmp_path / "runs"), list[str]()
    progress: Any = SimpleNamespace(say=said.append, run=lambda record: None, epoch=lambda work: None)
    returned = reporter.report(Event("lost", (SPEC.digest,), text="out of memory"))
    late = [*reporter.sent, *returned]

    class Hands:
        free = True

        def give(self, specs: Sequence[RunSpec]) -> None:
            if late:
                schedule.on_event(late.pop(0))
            else:
                runs.write(SPEC, {"spec": SPEC.to_dict(), "status": "finished"}, {})
                schedule.on_event(Event("run", (SPEC.digest,)))

        def wait(self, seconds: float) -> None:
            pass

        def close(self) -> None:
            pass

    with closing(Claims(runs.path, "me")) as claims:
        schedule = Schedule(plan_units([SPEC]), 8, NOTHING, runs, claims, progress)
        schedule.work(Hands())
    record = runs.record(SPEC)
    assert record is not None
    assert record["status"] == "finished"
    assert said == ["1 run lost, tried again once more: out of memory"]


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ((True, True, True), "finished"),
        ((False, True, False), "finished"),
        ((False, False), "failed"),
        ((True, False, False), "failed"),
    ],
)
def test_only_losses_without_a_later_saved_state_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[bool, ...], status: str
) -> None:
    """A run through the encoder that was begun before. Each loss says whether the lost worker saved a later state."""
    runs, spec, left = RunsFolder(tmp_path / "runs"), replace(SPEC, method="full"), list(losses)
    values = {"spec": spec.to_dict(), "status": "failed"}
    monkeypatch.setattr(scheduler, "failed_record", lambda context, spec, reason: values)
    progress: Any = SimpleNamespace(say=lambda line: None, run=lambda record: None)

    def save() -> None:
        state = runs.state_path(spec)
        state.parent.mkdir(parents=True, exist_ok=True)
        state.touch()
        os.utime(state, (0, 1 + len(losses) - len(left)))

    class Hands:
        free = True

        def give(self, specs: Sequence[RunSpec]) -> None:
            if not left:
                runs.write(spec, {**values, "status": "finished"}, {})
                schedule.on_event(Event("run", (spec.digest,)))
                return
            if left.pop(0):
                save()
            schedule.on_event(Event("lost", (spec.digest,), text="the worker that trained it was lost"))

        def wait(self, seconds: float) -> None:
            pass

        def close(self) -> None:
            pass

    save()
    with closing(Claims(runs.path, "me")) as claims:
        schedule = Schedule(plan_units([spec]), 8, NOTHING, runs, claims, progress)
        schedule.work(Hands())
    record = runs.record(spec)
    assert record is not None
    assert record["status"] == status
    assert left == []
