"""Successive halving: who stops when, and that who goes on ends as it would without."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit, forecast
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.estimate import Measurements
from fusionkit.fit.executor.unit_job import Event, do_unit, guard_of
from fusionkit.fit.executor.units import plan_units, split_in_two
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.fit.sweep.file import read_sweep
from fusionkit.fit.train.halving import Halving, epochs_share, rivals_of, rungs
from fusionkit.fit.train.result import RunResult, RunState, StoppedRun
from fusionkit.runs.claims import Claims
from fusionkit.runs.find_run import find_run
from fusionkit.runs.folder import CLAIMS
from fusionkit.specs import RunSpec
from fusionkit.store import Store

RATES = (1e-5, 5e-4, 2e-3, 1e-2)


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def sweep(store: Store, rates: tuple[float, ...] = RATES, seeds: int = 2, **more: Any) -> list[RunSpec]:
    chosen: dict[str, Any] = {"label": "tags", "fusions": ("last", "linear"), "epochs": (8,), "batch_sizes": (4,)}
    return expand(store, **(chosen | more), lrs=rates, seeds=seeds)


def records(runs: RunsFolder, specs: list[RunSpec]) -> dict[str, dict[str, Any]]:
    return {spec.digest: json.loads((runs.path / spec.digest / "run.json").read_text()) for spec in specs}


def best_so_far(record: Mapping[str, Any], epoch: int) -> float:
    return max(float(each["validation_score"]) for each in record["curve"][:epoch])


def endings(found: list[dict[str, Any]]) -> list[str]:
    return [record["status"] for record in found]


@pytest.mark.parametrize(
    ("settings", "epochs", "every", "expected", "whole"),
    [
        (4, 10, 1, {2: 2, 5: 1}, 19), (4, 5, 1, {1: 2, 2: 1}, 9), (3, 5, 1, {1: 2, 2: 1}, 8), (8, 20, 1, None, 48),
        (4, 100, 10, {20: 2, 50: 1}, 190), (4, 2, 1, {1: 1}, 5), (4, 1, 1, {}, 4), (1, 9, 1, {}, 9),
        (4, 10, 10, {}, 40),
    ],
)  # fmt: skip
def test_half_of_the_settings_stop_at_each_rung(
    settings: int, epochs: int, every: int, expected: dict[int, int] | None, whole: int
) -> None:
    assert expected is None or rungs(settings, epochs, every) == expected
    assert all(epoch % every == 0 and epoch < epochs for epoch in rungs(settings, epochs, every))
    assert epochs_share(settings, epochs, every) * settings * epochs == pytest.approx(whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_who_goes_on_has_the_scores_it_would_have_and_is_the_best_at_each_rung(
    store: Store, watch: Any, tmp_path: Path, workers: int
) -> None:
    specs = sweep(store)
    whole, halved = RunsFolder(tmp_path / "whole"), RunsFolder(tmp_path / "halved")
    fit(store, specs, whole, watch)
    found = fit(store, specs, halved, watch, workers=workers, halving=True)
    all_of_them = records(whole, specs)
    for fusion in ("last", "linear"):
        mine = [record for record in found if record["spec"]["fusion"] == fusion]
        scores = {
            rung: {
                rate: sum(
                    best_so_far(all_of_them[spec.digest], rung)
                    for spec in specs
                    if (spec.fusion, spec.lr) == (fusion, rate)
                )
                for rate in RATES
            }
            for rung in (2, 4)
        }
        first = sorted(RATES, key=lambda rate: -scores[2][rate])[:2]
        best = max(first, key=lambda rate: scores[4][rate])
        ends = {rate: {r["status"] for r in mine if r["spec"]["lr"] == rate} for rate in RATES}
        assert ends == {rate: {"finished" if rate == best else "stopped"} for rate in RATES}
        for record in mine:
            digest = RunSpec.from_dict(record["spec"]).digest
            rate, kept = record["spec"]["lr"], all_of_them[digest]
            trained = 8 if rate == best else 4 if rate in first else 2
            # Losses are equal to rounding: a stack of fewer runs sums in another order.
            assert record["curve"] == [pytest.approx(each, rel=1e-4) for each in kept["curve"][:trained]]
            if rate == best:
                assert all(record[name] == kept[name] for name in ("score", "scores", "best_epoch", "steps"))
            else:
                assert record["score"] is None
                assert not (halved.path / digest / "weights.safetensors").exists()


def test_a_halved_sweep_is_there_and_without_halving_it_is_finished(store: Store, watch: Any, tmp_path: Path) -> None:
    specs, runs = sweep(store, seeds=1), RunsFolder(tmp_path / "runs")
    fit(store, specs, runs, watch, halving=True)
    told = {spec.digest: (runs.path / spec.digest / "run.json").stat().st_mtime_ns for spec in specs}
    fit(store, specs, runs, watch, halving=True)
    assert told == {spec.digest: (runs.path / spec.digest / "run.json").stat().st_mtime_ns for spec in specs}
    stopped = [digest for digest, record in records(runs, specs).items() if record["status"] == "stopped"]
    assert len(stopped) == 6
    assert len(find_run(runs.path)) == 2
    with pytest.raises(UsageError, match="was stopped early by --halving"):
        open_run(runs.path / stopped[0])
    assert set(endings(fit(store, specs, runs, watch))) == {"finished"}


def test_runs_that_compete_are_one_process_s_at_a_time(store: Store, tmp_path: Path) -> None:
    """Two processes that shared them would each stop half of its own."""
    specs, runs = sweep(store, seeds=1), RunsFolder(tmp_path / "runs")
    runs.path.mkdir()
    ours, theirs = (Claims(runs.path, name) for name in ("ours", "theirs"))
    context, told = SweepContext(store, halving=True), list[Event]()
    guards = [guard_of(rivals_of(spec)) for spec in specs]
    assert len(set(guards)) == 2
    assert theirs.take(guards[0])
    do_unit(specs, context, runs, ours, told.append)
    left = [digest for event in told if event.kind == "others" for digest in event.runs]
    assert left == [spec.digest for spec, guard in zip(specs, guards, strict=True) if guard == guards[0]]
    assert {event.text for event in told if event.kind == "others"} == {"theirs"}
    assert sorted({*left, *(digest for event in told if event.kind == "run" for digest in event.runs)}) == sorted(
        spec.digest for spec in specs
    )
    theirs.close()
    do_unit(specs, context, runs, ours, told.append)
    assert sorted(record["status"] for record in runs.records()) == ["finished"] * 2 + ["stopped"] * 6
    ours.close()
    assert not (runs.path / CLAIMS).exists()


def test_runs_that_are_added_compete_with_those_that_are_there(store: Store, watch: Any, tmp_path: Path) -> None:
    """Also those of a sweep that was killed: what it had ended counts as it would have."""
    runs, again = RunsFolder(tmp_path / "runs"), RunsFolder(tmp_path / "again")
    specs = sweep(store, fusions=("last",))
    once = endings(fit(store, specs, runs, watch, halving=True))
    for spec in specs[::3]:
        runs.forget(spec)
    assert endings(fit(store, specs, runs, watch, halving=True)) == once
    fit(store, specs[:4], again, watch)  # the two lower rates, whole
    assert endings(fit(store, specs, again, watch, halving=True))[:4] == ["finished"] * 4


def test_runs_that_compete_stay_in_one_unit(store: Store) -> None:
    specs = sweep(store, seeds=3)
    units = plan_units(specs, 12, halving=True)
    assert sorted(map(len, units)) == [12, 12]
    assert all(len({rivals_of(spec) for spec in unit}) == 1 for unit in units)
    assert sorted(map(len, plan_units(specs, 5, halving=True))) == [12, 12]  # as wide as they are many
    assert len(plan_units(specs, 48, halving=True)) == 1


def test_a_lost_unit_is_split_between_what_competes_then_between_settings(store: Store) -> None:
    specs = sweep(store, seeds=3)  # two fusions, four rates each
    first, second = split_in_two(specs, halving=True)
    assert [{rivals_of(spec) for spec in half} for half in (first, second)] == [
        {rivals_of(specs[0])}, {rivals_of(specs[-1])},
    ]  # fmt: skip
    rates = [sorted(spec.lr for spec in half) for half in split_in_two(first, halving=True)]
    assert [len(set(half)) for half in rates] == [2, 2]
    assert not set(rates[0]) & set(rates[1])
    seeds = first[:3]  # of one rate
    assert {spec.lr for spec in seeds} == {specs[0].lr}
    assert split_in_two(seeds, halving=True) == (seeds[:2], seeds[2:])
    assert split_in_two(specs) == (tuple(specs[:12]), tuple(specs[12:]))


def test_a_forecast_counts_the_epochs_that_are_trained(store: Store, tmp_path: Path) -> None:
    specs = sweep(store, seeds=1)
    known, runs = Measurements(), RunsFolder(tmp_path / "runs")  # one measurement for both
    whole, halved = (forecast(store, specs, runs, known=known, halving=halving)[0] for halving in (False, True))
    assert sum(part["seconds"] for part in halved.parts) < sum(part["seconds"] for part in whole.parts)


def test_seeds_that_cannot_be_trained_side_by_side_are_refused(store: Store, watch: Any, tmp_path: Path) -> None:
    specs = sweep(store, order="window")
    with pytest.raises(UsageError, match=r"(?s)cannot be trained side by side.*--order shuffle"):
        fit(store, specs, RunsFolder(tmp_path / "runs"), watch, halving=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("text", "expected"), [("halving: yes", True), ("halving: no", False), ("epochs: 3", False)])
def test_a_file_says_it_for_all_blocks(store: Store, tmp_path: Path, text: str, expected: bool) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"label: tags\nlr: [1e-3, 2e-3]\nruns:\n  - fusion: last\n  - fusion: linear\n    {text}\n")
    assert expand_blocks(store, read_sweep(path).blocks).halving is expected
    path.write_text("halving: perhaps\n")
    with pytest.raises(UsageError, match="'halving' has a value of another kind"):
        read_sweep(path)


def test_rates_of_a_run_and_of_its_control_do_not_compete(store: Store) -> None:
    block = {"label": "tags", "fusions": ("last",), "lrs": (1e-3, 2e-3), "control": True, "halving": True}
    with pytest.raises(UsageError, match="another of its control"):
        expand_blocks(store, [block])


def test_what_stops_has_no_scores_of_test() -> None:
    fields = set(StoppedRun.__dataclass_fields__)
    assert fields < set(RunResult.__dataclass_fields__)
    assert not fields & {"score", "scores", "tests", "answers", "weights"}


SCORES = ([9.0, 4.0], [5.0, 6.0], [3.0, 7.0], [8.0, 8.5])  # of four settings after two epochs


@pytest.mark.parametrize("competing", ["lr", "fusion_layers"])
@pytest.mark.parametrize(("metric", "stay"), [("accuracy", {0, 3}), ("perplexity", {0, 2})])
def test_of_a_loss_the_least_goes_on_layers_compete_like_rates_and_who_failed_is_out(
    toy: Callable[..., TaskData], metric: str, stay: set[int], competing: str
) -> None:
    plain = RunSpec(store="s", task="classification", label="x", fusion="linear", head="classifier", epochs=8)
    values: tuple[Any, ...] = RATES if competing == "lr" else ("0", "1", "2", "0,1")
    draw = toy().train
    runs = [RunState(replace(plain, **{competing: value}), (0,), draw) for value in values]
    for run, scores in zip(runs, SCORES, strict=True):
        run.metric = metric
        run.curve = [{"epoch": n, "loss": 1.0, "validation_score": value} for n, value in enumerate(scores, 1)]
    assert set(range(4)) - {runs.index(run) for run in Halving().stopped(runs, (), 2)} == stay
    lost = Halving().stopped(runs, {runs[0]}, 2)  # among the best of both metrics, but for its loss
    assert runs[0] in lost
    assert len(lost) == 2


def test_settings_that_have_learned_nothing_yet_go_on(toy: Callable[..., TaskData]) -> None:
    plain = RunSpec(store="s", task="classification", label="x", fusion="linear", head="classifier", epochs=8)
    runs = [RunState(replace(plain, lr=rate), (0,), toy().train) for rate in RATES]
    for run, score in zip(runs, (0.0, 0.0, 0.1, 0.0), strict=True):
        run.metric, run.curve = "f1", [{"epoch": 2, "loss": 1.0, "validation_score": score}]
    assert Halving().stopped(runs, (), 2) == set()  # the second place is shared by three
    assert Halving().stopped(runs, {runs[3]}, 2) == {runs[3]}


def test_means_that_differ_by_rounding_are_equally_good(toy: Callable[..., TaskData]) -> None:
    plain = RunSpec(store="s", task="classification", label="x", fusion="linear", head="classifier", epochs=8)
    draw, runs = toy().train, list[RunState]()
    # The second and the third mean are 0.1, and NumPy's differ in the last digit.
    for rate, scores in zip(RATES, ((0.3, 0.3, 0.3), (0.1, 0.1, 0.1), (0.3, 0.0, 0.0), (0.0, 0.0, 0.0)), strict=True):
        for seed, score in enumerate(scores):
            runs.append(RunState(replace(plain, lr=rate, init_seed=seed), (0,), draw))
            runs[-1].metric, runs[-1].curve = "f1", [{"epoch": 2, "loss": 1.0, "validation_score": score}]
    assert {run.spec.lr for run in Halving().stopped(runs, (), 2)} == {RATES[3]}
