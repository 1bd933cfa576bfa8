"""What ``fit`` shows of a sweep: the plan, the table while it runs, the refusals."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fusionkit.cli.console import ProgressBars, clock
from fusionkit.cli.tables.sweep_table import SweepTable, frame, headline
from fusionkit.cli.tables.sweep_tally import Tally
from fusionkit.specs import RunSpec

Command = Callable[..., Any]
SPECS = [
    RunSpec(store="s", task="classification", label=label, fusion=fusion, head="classifier", lr=lr, epochs=4)
    for label in ("intent", "tone")
    for fusion in ("last", "linear", "concat")
    for lr in (0.1, 0.2)
]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(spec: RunSpec, score: float | None, metric: str = "accuracy") -> dict[str, Any]:
    status = "failed" if score is None else "finished"
    found = {"spec": spec.to_dict(), "status": status, "metric": metric, "validation_score": score}
    return {**found, "error": "the loss is no longer finite\n  received: nan"} if score is None else found


def told(tally: Tally, height: int, width: int = 100) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(frame(tally, height, width))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_a_pace_is_told_once_it_is_that_of_enough_work() -> None:
    clock = Clock()
    tally = Tally(SPECS, (), clock)
    tally.begin({spec.digest: 100.0 for spec in SPECS})  # 1200 together
    told = []
    for now in (10.0, 20.0, 30.0, 40.0, 50.0):
        clock.now = now
        tally.epoch(2.0)
        told.append(tally.seconds_left)
    assert told == [None, None, None, pytest.approx(30 * (1200 - 8) / 6), pytest.approx(40 * (1200 - 10) / 8)]


def test_a_tally_counts_runs_the_pace_of_ours_and_the_epochs_left() -> None:
    clock = Clock()
    tally = Tally(SPECS, [record(SPECS[0], 0.5)], clock)
    clock.now = 100.0
    # Eleven runs of four epochs are left; those at the larger rate learn from more.
    work = {spec.digest: 4 * (9.0 if spec.lr == 0.2 else 1.0) for spec in SPECS[1:]}
    tally.begin(work)
    of = 6 * 4 * 9 + 5 * 4
    assert (tally.runs, tally.done, tally.per_minute, tally.seconds_left) == (12, 1, None, None)
    clock.now = 124.0
    tally.epoch(9.0)
    assert tally.seconds_left is None  # the time until the first is not that of any other
    clock.now = 130.0
    for _ in range(3):
        tally.epoch(9.0)
    tally.run(record(SPECS[1], 0.7))
    tally.elsewhere(record(SPECS[2], 0.6))
    tally.run(record(SPECS[3], None))
    assert (tally.done, tally.failed, tally.others) == (4, 1, 1)
    assert tally.per_minute == pytest.approx(2 / 0.5)
    assert tally.share == pytest.approx((4 * 9 + 4) / of)
    assert tally.seconds_left == pytest.approx(6 * (of - 40) / (40 - 9))
    expected = "4 of 12 runs done, 8 left, 1 failed, 1 by others, 4 heads a minute, about 0:38 to go"
    assert headline(tally) == expected
    for _ in range(99):  # a lost run tells of its epochs twice
        tally.epoch(9.0)
    assert tally.share == 1.0


def test_what_an_earlier_process_did_says_nothing_about_the_pace() -> None:
    clock = Clock()
    tally = Tally(SPECS[:2], (), clock)
    tally.begin({spec.digest: 100.0 for spec in SPECS[:2]})
    tally.step(1.0, "step 1")
    tally.resumed(90.0)
    clock.now = 10.0
    tally.step(1.0, "step 91")
    assert tally.seconds_left == pytest.approx(10 * (200 - 90 - 2))


def test_the_table_shows_the_best_of_each_task_and_fusion_and_what_it_differs_by() -> None:
    tally = Tally(SPECS, [], Clock())
    for spec, score in zip(SPECS, (0.5, 0.7, 0.6, None, 0.55, 0.5), strict=False):
        tally.run(record(spec, score))
    lines = told(tally, height=40)
    assert [line.split() for line in lines[2:6]] == [
        ["task", "fusion", "done", "failed", "best", "of"],
        ["intent", "last", "2/2", "70.0", "lr", "0.2"],
        ["intent", "linear", "2/2", "1", "60.0", "lr", "0.1"],
        ["intent", "concat", "2/2", "55.0", "lr", "0.1"],
    ]
    assert lines[6].split() == ["tone", "last", "0/2"]
    assert {task: best["spec"]["fusion"] for task, best in tally.best().items()} == {"intent": "last"}


def test_tasks_that_learn_together_are_told_by_their_names_and_floors_tell_no_run_apart() -> None:
    together = SPECS[0].to_dict() | {"task": "sst2=classification,slots=tagging", "label": "label,label"}
    specs = [RunSpec.from_dict(together | {"method": method}) for method in ("full", "frozen")]
    floor = RunSpec.from_dict(SPECS[0].to_dict() | {"fusion": "majority", "head": "none", "epochs": 1})
    tally = Tally([*specs, floor], [], Clock())
    tally.run(record(specs[0], 0.5))
    assert told(tally, height=40)[3].split() == ["sst2", "+", "slots", "last", "1/2", "50.0", "full"]
    assert list(tally.best()) == ["sst2 + slots"]


def test_of_perplexities_the_smaller_is_the_better_and_shown_as_it_is() -> None:
    tally = Tally(SPECS, [], Clock())
    for spec, score in zip(SPECS, (12.34, 11.0, 15.0), strict=False):
        tally.run(record(spec, score, "perplexity"))
    assert "11.0" in told(tally, height=40)[3]
    assert tally.best()["intent"]["spec"]["fusion"] == "last"


@pytest.mark.parametrize("height", [1, 5, 6, 7, 9, 12, 40])
def test_the_table_is_never_taller_than_the_terminal(height: int) -> None:
    for width in (20, 100):
        lines = told(Tally(SPECS, [], Clock()), height, width)
        assert 1 <= len(lines) <= max(height - 1, 1)  # the cursor stands below
        assert max(map(len, lines)) <= width
    assert ("and 4 more" in told(Tally(SPECS, [], Clock()), height=8)) is True


def test_times_are_read_like_a_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.6, 143, 3723)] == ["0:00", "1:00", "2:23", "1:02:03"]


@pytest.mark.parametrize(
    ("terminal", "name", "plain"), [(False, "xterm", True), (True, "dumb", True), (True, "xterm", False)]
)
def test_nothing_is_drawn_again_in_a_file_and_where_no_cursor_moves(
    terminal: bool, name: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With FORCE_COLOR Rich takes a file for a terminal."""
    shown = io.StringIO()
    shown.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", shown)
    for variable, value in (("FORCE_COLOR", "1"), ("TERM", name), ("COLUMNS", "200")):
        monkeypatch.setenv(variable, value)
    with ProgressBars() as bars:
        bars.step("encoding", 3, 0, "parts")
        bars.advance(1)
    with SweepTable(SPECS) as table:
        table.begin(12, 48, {spec.digest: 4.0 for spec in SPECS})
    lines = ["encoding: 3 parts", "fitting 12 runs: 48 epochs"]
    assert (shown.getvalue().splitlines() == lines) == plain
    assert ("\x1b[2K" in shown.getvalue()) != plain  # erases a line


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with SweepTable(SPECS) as progress:
        progress.begin(12, 48, {spec.digest: 4.0 for spec in SPECS})
        progress.run(record(SPECS[0], None))
        progress._last -= 60
        progress.run(record(SPECS[1], 0.5))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fitting 12 runs: 48 epochs"
    assert lines[1] == "failed: last lr 0.1 seed 0: the loss is no longer finite"
    assert lines[2].startswith("2 of 12 runs done, 10 left, 1 failed, ")
    assert lines[2].endswith("best for intent: last 50.0")
    assert len(lines) == 3


def test_a_dry_run_prints_the_plan_and_trains_nothing(store: Path, fusionkit: Command, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    options = ["fit", store, "--out", runs, "--label", "intent", "--fusion", "last", "--fusion", "linear", "--seeds", 2]
    done = fusionkit(*options, "--epochs", 1, "--epochs", 2, "--dry-run")
    assert done.code == 0
    assert not runs.exists()
    lines = done.out.splitlines()
    assert lines[0].split() == ["label", "fusion", "epochs", "runs", "one", "process"]
    assert [line.split()[:4] for line in lines[1:5]] == [
        ["intent", fusion, epochs, "2"] for fusion in ("last", "linear") for epochs in "12"
    ]
    assert lines[5] == "8 runs: 0 there already, 8 to train in 1 unit by one process"
    assert "if this machine stays as busy as it is now" in lines[6]
    assert lines[7] == (
        "estimated from counted operations; for all 2 kinds of runs, from a few measured epochs or finished runs"
    )
    assert fusionkit(*options, "--epochs", 1).code == 0
    found = fusionkit(*options, "--epochs", 1, "--epochs", 2, "--dry-run", "--json").json
    assert (found["runs"], found["there"], found["workers"], len(found["parts"])) == (8, 4, 1, 2)
    assert found["seconds"] > 0
    again = fusionkit(*options, "--epochs", 1, "--dry-run")
    assert again.out == "4 runs: 4 there already, 0 to train\n"


def test_workers_are_a_number_or_auto(store: Path, fusionkit: Command, tmp_path: Path) -> None:
    for wrong in ("0", "many", "-1", "1.5"):
        done = fusionkit("fit", store, "--out", tmp_path / "runs", "--workers", wrong)
        assert done.code == 2
        assert f"{wrong!r} is neither 'auto' nor a number of processes" in done.err
