"""The plan of a sweep before it starts, and how many processes share it."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit, forecast
from fusionkit.fit.executor import plan as planning
from fusionkit.fit.executor import run as running
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.cost import RATE, CostModel, Sizes
from fusionkit.fit.executor.estimate import Measurements, kind_of, sampled
from fusionkit.fit.executor.plan import Plan, makespan, plan
from fusionkit.fit.executor.prepare import Prepared, prepare
from fusionkit.fit.executor.units import plan_units
from fusionkit.fit.sweep.fixed_draws import FixedDraws, with_draws
from fusionkit.fusions.last import Last
from fusionkit.machine import resources
from fusionkit.machine.memory import resident
from fusionkit.runs.claims import Claims
from fusionkit.specs import RunSpec
from fusionkit.store import Store


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


def spec_of(**fields: Any) -> RunSpec:
    given = {"store": "s", "task": "classification", "label": "label", "fusion": "last", "head": "classifier"}
    return RunSpec(**{**given, **fields})


def test_a_runs_counted_time_is_that_of_its_epochs_and_of_its_last_scores(store: Store) -> None:
    (spec,) = expand(store, task="tagging", fusions=("linear",), epochs=(3,), batch_sizes=(8,))
    context = SweepContext(store)
    cost, data = CostModel(context), context.data(spec)
    learned, watched = len(data.train), len(data.validation)
    assert data.test is not None
    scored = cost.products_over(spec, 0, watched + len(data.test))
    assert cost.seconds(spec) == pytest.approx((3 * cost.products_over(spec, learned, watched) + scored) / RATE)
    few = dataclasses.replace(spec, shots=1, validate_on=2)
    assert cost.seconds(few) == pytest.approx((3 * cost.products_over(few, cost.learned(few), 2) + scored) / RATE)
    seldom = dataclasses.replace(spec, validate_every=2)
    assert cost.seconds(seldom) == pytest.approx((3 * cost.products_over(spec, learned, watched / 2) + scored) / RATE)


def test_a_sample_stands_for_data_of_any_size(store: Store) -> None:
    (spec,) = expand(store, task="tagging", fusions=("linear",), epochs=(3,))
    context = SweepContext(store)
    data = context.data(spec)
    sizes = Sizes(10 * len(data.train), 10 * len(data.validation), 0)
    whole, part = CostModel(context, sizes), CostModel(context)
    assert whole.products(spec) == pytest.approx(10 * part.products(spec))
    few = dataclasses.replace(spec, shots=2)
    assert (whole.learned(spec), whole.learned(few)) == (sizes.train, 2 * data.classes)


def test_a_sample_stands_for_an_online_code_over_a_draw_that_is_larger_than_it(store: Store) -> None:
    choices: dict[str, Any] = {"task": "tagging", "fusions": ("linear",), "epochs": (1,)}
    whole, first, *_, last = expand(store, **choices, mdl=True, draw="nested", shots=(64,))
    cost = CostModel(SweepContext(store), Sizes(10_000, 100, 100))
    assert 0 < cost.seconds(first) < cost.seconds(last) < cost.seconds(whole)
    assert sampled(last, 1, cost) > 0


def test_runs_of_one_kind_differ_in_sizes_seeds_and_rates_alone() -> None:
    one = spec_of(batch_size=16)
    for name, value in {"lr": 0.1, "data_seed": 3, "epochs": 99, "shots": 20, "validate_every": 5}.items():
        assert kind_of(dataclasses.replace(one, **{name: value})) == kind_of(one)  # type: ignore[arg-type]
    for name, other in {"fusion": "linear", "batch_size": 8, "optimizer": "adam"}.items():
        assert kind_of(dataclasses.replace(one, **{name: other})) != kind_of(one)  # type: ignore[arg-type]


def test_a_sample_measures_and_changes_nothing(store: Store) -> None:
    context = SweepContext(store)
    (spec,) = expand(store, task="tagging", fusions=("attention",), seeds=1)
    before = context.data(spec).train.ids
    factor = sampled(spec, 2, CostModel(context))
    assert math.isfinite(factor)
    assert factor > 0
    assert context.data(spec).train.ids == before


def test_what_is_on_record_is_not_measured_again_and_stands_for_others(store: Store) -> None:
    last, linear = expand(store, task="tagging", fusions=("last", "linear"), epochs=(4,))
    cost = CostModel(SweepContext(store))
    epoch = cost.products(last) / RATE
    measured = Measurements(seconds=0.0)
    measured.read({last: {"epoch_seconds": [7 * epoch, 14 * epoch]}, linear: {"epoch_seconds": None}}, cost)
    measured.sample([last, linear], cost)  # no time is left for linear
    assert [measured.knows(spec) for spec in (last, linear)] == [True, False]
    assert measured.factor(last) == pytest.approx(7)
    assert measured.factor(linear) == pytest.approx(7)
    unknown = Measurements(seconds=0.0)
    unknown.sample([last, linear], cost)  # one is measured all the same
    assert [unknown.knows(spec) for spec in (last, linear)] == [False, True]


def test_a_forecast_counts_what_is_there_and_keeps_nothing(store: Store, tmp_path: Path, watch: Any) -> None:
    runs = RunsFolder(tmp_path / "runs")
    specs = expand(store, task="tagging", fusions=("last", "linear"), seeds=3, epochs=(1, 2))
    empty, notes = forecast(store, specs, runs)
    assert (empty.runs, empty.there, empty.failed, empty.elsewhere, empty.workers) == (12, 0, 0, 0, 1)
    assert empty.units == len(plan_units(specs))
    assert (empty.kinds, empty.sampled) == (2, 2)
    assert not (tmp_path / "runs").exists()
    assert any("with a label that train lacks" in note for note in notes)
    parts = {(part["fusion"], part["epochs"]): part for part in empty.parts}
    assert {key: part["runs"] for key, part in parts.items()} == {(f, e): 3 for f in ("last", "linear") for e in (1, 2)}
    assert parts["linear", 2]["seconds"] > parts["linear", 1]["seconds"] > 0
    assert empty.seconds == pytest.approx(sum(part["seconds"] for part in empty.parts))
    assert empty.memory > 50_000_000  # this process already has PyTorch in it
    fit(store, specs[:5], runs, watch)
    claims = Claims(tmp_path / "runs", "somebody else")
    assert claims.take(specs[6].digest)
    later, notes = forecast(store, specs, runs)
    claims.close()
    assert (later.runs, later.there, later.elsewhere) == (12, 5, 1)
    assert sum(part["runs"] for part in later.parts) == 7
    assert notes[0] == "5 of 12 runs there already"
    nothing, _ = forecast(store, specs[:5], runs)
    assert (nothing.units, nothing.seconds, nothing.parts) == (0, 0.0, [])
    assert json.loads(json.dumps(later.__dict__))["runs"] == 12


def test_every_way_of_drawing_and_watching_can_be_forecast(store: Store, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"task": "tagging", "fusions": ("last",), "epochs": (1,), "shots": (2,)}
    specs = [*expand(store, **choices, draw="stratified"), *expand(store, **choices, draw="nested", validate_on=2)]
    (whole,) = expand(store, task="tagging", fusions=("last",), epochs=(1,))
    drawn = FixedDraws(tuple(SweepContext(store).data(whole).train.ids[:3]))
    specs += with_draws([whole], [drawn])
    found, _ = forecast(store, specs, RunsFolder(tmp_path / "runs"), draws=[drawn])
    assert [part["runs"] for part in found.parts] == [2, 1]  # both of two shots, and the list
    assert all(part["seconds"] > 0 for part in found.parts)
    context = SweepContext(store, draws={drawn.digest: drawn.ids})
    assert [context.learned(spec) for spec in specs] == [4, 4, 3]


def test_workers_take_units_in_their_order_as_they_get_free() -> None:
    assert makespan([5, 1, 1, 1, 4], 1) == 12
    assert makespan([5, 1, 1, 1, 4], 2) == 7  # 5 | 1 1 1 4
    assert makespan([5, 1, 1, 1, 4], 9) == 5
    assert makespan([], 2) == 0


def test_little_work_one_unit_or_one_core_is_done_by_this_process(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workers(seeds: int, epochs: int, asked: int | None = None) -> int:
        specs = expand(store, task="tagging", fusions=("last",), seeds=seeds, epochs=(epochs,))
        return plan(prepare(store, specs, RunsFolder(tmp_path)), asked).workers

    monkeypatch.setattr("fusionkit.fit.executor.plan.cores", lambda: 4)
    assert workers(seeds=8, epochs=1) == 1  # a moment
    assert workers(seeds=8, epochs=100_000) == 4  # hours
    assert workers(seeds=1, epochs=100_000) == 1  # cannot be shared
    assert workers(seeds=8, epochs=1, asked=2) == 2  # as told
    assert workers(seeds=2, epochs=1, asked=5) == 2
    monkeypatch.setattr("fusionkit.fit.executor.plan.spare_memory", lambda: 1 << 20)
    assert workers(seeds=8, epochs=100_000) == 1  # memory for none beside this one
    monkeypatch.setattr("fusionkit.fit.executor.plan.cores", lambda: 1)
    assert workers(seeds=8, epochs=100_000) == 1


def test_one_long_run_through_the_encoder_gets_a_process_with_huge_pages(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = expand(store, task="tagging", fusions=("last",), seeds=1, epochs=(100,))
    prepared = prepare(store, [spec], RunsFolder(tmp_path))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.35"))
    monkeypatch.setattr(CostModel, "unit_seconds", lambda self, unit: 60.0)
    assert plan(prepared, None).opening is None
    monkeypatch.setattr(RunSpec, "is_frozen", property(lambda self: False))
    assert plan(prepared, None).opening is not None
    assert plan(prepared, 1).opening is None  # as told
    with monkeypatch.context() as patch:
        patch.setattr(planning, "spare_memory", lambda: 1 << 20)
        assert plan(prepared, None).opening is None
    with monkeypatch.context() as patch:
        patch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
        assert plan(prepared, None).opening is None  # a worker would have none
    with monkeypatch.context() as patch:
        patch.setattr(platform, "libc_ver", lambda: ("musl", "1.2.5"))
        assert plan(prepared, None).opening is None  # nor would it there
    monkeypatch.setattr(CostModel, "unit_seconds", lambda self, unit: 10.0)
    assert plan(prepared, None).opening is None  # not worth a start


def test_the_longest_units_come_first(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionkit.fit.executor.plan.cores", lambda: 2)
    # Light ones and few examples first, as people write them down: 4 units of different lengths.
    sizes: dict[str, Any] = {"shots": (1, 2), "epochs": (5,), "seeds": 8}
    specs = [
        spec for name in ("last", "extra-layers:2") for spec in expand(store, task="tagging", fusions=(name,), **sizes)
    ]
    found = plan(prepare(store, specs, RunsFolder(tmp_path)), 2)
    assert found.workers == 2
    told = [(unit[0].fusion, unit[0].shots) for unit in found.units]
    assert told == [("extra-layers:2", 2), ("extra-layers:2", 1), ("last", 2), ("last", 1)]
    assert sorted(spec.digest for unit in found.units for spec in unit) == sorted(spec.digest for spec in specs)


def test_cores_and_memory_are_the_containers_where_those_are_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    free, bound = resources.spare_memory(), resources.cores()
    assert bound >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert resources.cores() == bound
    (tmp_path / "cpu.max").write_text("350000 100000\n")
    assert resources.cores() == 3
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert resources.spare_memory() == 2000
    (tmp_path / "memory.stat").write_text("file 900\nactive_file 300\ninactive_file 400\n")
    assert resources.spare_memory() == 2700  # pages of files are freed where memory is short
    (tmp_path / "memory.max").write_text("max\n")
    assert (resources.spare_memory() is None) == (free is None)


def test_the_limits_of_the_groups_around_a_process_hold_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm limits a job, and the process is in a group below the job's."""
    job = tmp_path / "job_7"
    own = job / "step_batch" / "task_0"
    own.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere\n0::/job_7/step_batch/task_0\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    monkeypatch.setattr(resources, "OWN_GROUP", tmp_path / "cgroup")
    for group, limit in ((own, "max"), (job, "3000")):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text("1000\n")
    (job / "cpu.max").write_text("250000 100000\n")
    assert (resources.spare_memory(), resources.cores()) == (2000, 2)


def test_an_epoch_counts_by_the_products_of_what_reads_its_rows(store: Store) -> None:
    (spec,) = expand(store, task="tagging", fusions=("linear",), head="linear-tagger", compute_dtype="bfloat16")
    context = SweepContext(store)
    cost, data = CostModel(context), context.data(spec)
    layers, tags = len(store.layers), len(data.labels)
    read = 3 * len(data.train.rows) + len(data.validation.rows)
    fusion, head = layers + 1 + layers * store.hidden, (store.hidden + 1) * tags
    assert cost.products(spec) == pytest.approx(2 * (fusion + head) * read)
    pooled = dataclasses.replace(spec, task="classification", label="label", head="classifier", pool="mean")
    examples = context.data(pooled)
    every = 3 * len(examples.train.rows) + len(examples.validation.rows)
    each = 3 * len(examples.train) + len(examples.validation)
    numbers = store.hidden * 256 + 256 + 256 * 256 + 256 + 256 * len(examples.labels) + len(examples.labels)
    assert cost.products(pooled) == pytest.approx(2 * (fusion * every + numbers * each))
    dear, cheap = (cost.products(dataclasses.replace(spec, fusion=name)) for name in ("extra-layers:1", "last"))
    assert dear > 100 * cheap


def test_a_process_has_memory_for_its_weights_and_what_it_holds(store: Store) -> None:
    specs = expand(store, task="tagging", fusions=("concat",), seeds=3)
    cost = CostModel(SweepContext(store))
    one, all_of_them = (plan_units(some) for some in (specs[:1], specs))
    assert cost.weights(all_of_them) == 3 * cost.weights(one)
    assert cost.memory(all_of_them) - cost.memory([]) > cost.weights(all_of_them)
    assert cost.memory([]) > resident() / 2


def test_a_unit_has_no_more_runs_than_there_is_memory_for_at_its_start(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a unit's models are made at once, and Linux kills who uses more memory than there is."""
    specs = expand(store, task="tagging", fusions=("concat",), seeds=40)
    prepared = prepare(store, specs, RunsFolder(tmp_path / "runs"))
    cost = CostModel(prepared.context)
    one = cost.weights(plan_units(specs[:1]))
    assert cost.weights(plan_units(specs)) == 40 * one
    for spare, workers, widest in ((100 * one, 1, 48), (20 * one, 1, 12), (20 * one, 2, 5), (one // 2, 1, 1)):
        monkeypatch.setattr(planning, "spare_memory", lambda spare=spare: spare)
        planned = plan(prepared, workers)
        assert planned.widest == widest
        assert max(len(unit) for unit in planned.units) == min(widest, 40)
        plural = "run" if widest == 1 else "runs"
        assert planned.notes == ([f"at most {widest} {plural} at once: memory"] if widest < 40 // workers else [])
        assert [spec for unit in planned.units for spec in unit if spec not in specs] == []
        assert sum(len(unit) for unit in planned.units) == 40
    monkeypatch.setattr(planning, "spare_memory", lambda: 20 * one)
    monkeypatch.setattr("fusionkit.fit.executor.cost.resident", lambda: 10**9)
    assert plan(prepared, 2, elsewhere=True).widest == 10  # of each machine its own memory
    assert plan(prepared, 2, elsewhere=True, sharers=2).widest == 5
    assert plan(prepared, 2, elsewhere=True, memory=cost.memory([]) + 10 * one).widest == 5  # a job's own
    assert plan(prepared, 2, elsewhere=True, memory=one).widest == 1


def test_the_units_of_a_cluster_are_planned_for_the_workers_that_share_a_memory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()

    def refused(prepared: Prepared, workers: int, **how: Any) -> Plan:
        asked.update(how, workers=workers)
        raise UsageError("enough seen")

    monkeypatch.setattr(running, "plan", refused)
    cluster: Any = SimpleNamespace(workers=3, sharers=2, memory=10**9)
    specs = expand(store, task="tagging", fusions=("last",))
    with pytest.raises(UsageError, match="enough seen"):
        fit(store, specs, RunsFolder(tmp_path / "runs"), cluster=lambda: cluster)
    assert asked == {"workers": 3, "elsewhere": True, "sharers": 2, "memory": 10**9}


def test_a_refused_sweep_and_one_that_is_done_open_no_cluster(store: Store, tmp_path: Path) -> None:
    """Its jobs would wait in a queue for nothing."""

    def opened() -> Any:
        raise AssertionError("opened")

    runs = RunsFolder(tmp_path / "runs")
    with pytest.raises(UsageError, match="shots"):
        fit(store, expand(store, task="tagging", fusions=("last",), shots=(10**6,)), runs, cluster=opened)
    specs = expand(store, task="tagging", fusions=("last",), epochs=(1,))
    done = fit(store, specs, runs)
    assert fit(store, specs, runs, cluster=opened) == done
    with pytest.raises(AssertionError, match="opened"):
        fit(store, expand(store, task="tagging", fusions=("linear",), epochs=(1,)), runs, cluster=opened)


def test_a_run_through_the_encoder_does_not_narrow_the_units_of_heads(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = expand(store, task="tagging", fusions=("last",), seeds=4)
    prepared = prepare(store, heads, RunsFolder(tmp_path / "runs"))
    prepared.missing.append(dataclasses.replace(heads[0], method="full"))
    cost, spare = CostModel(prepared.context), 100_000_000
    assert cost.weights(plan_units(prepared.missing)) > spare > 2 * cost.weights(plan_units(heads))
    monkeypatch.setattr(planning, "spare_memory", lambda: spare)
    planned = plan(prepared, 1)
    assert (sorted(map(len, planned.units)), planned.notes) == ([1, 4], [])


def test_this_process_does_all_only_where_no_cluster_was_asked_to(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(store, expand(store, task="tagging", fusions=("last",), seeds=4), RunsFolder(tmp_path / "runs"))
    monkeypatch.setattr(planning, "opening_of", lambda context: None)
    assert plan(prepared, 2).notes == ["no other process can open these stores: this one does all"]
    assert plan(prepared, 2, elsewhere=True).notes == []


@pytest.mark.parametrize("own", [{"fusion": "__main__:Mine"}, {"method": "__main__:Mine"}], ids=["fusion", "method"])
def test_what_the_script_itself_defines_is_trained_in_its_process(
    own: dict[str, Any], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Last, raising=False)
    monkeypatch.setattr(planning, "cores", lambda: 4)
    specs = expand(store, task="tagging", fusions=("last",), seeds=8, epochs=(100_000,))
    prepared = prepare(store, specs, RunsFolder(tmp_path))
    assert plan(prepared, None).workers == 4
    prepared.missing[-1] = dataclasses.replace(specs[-1], **own)
    assert [plan(prepared, asked).opening for asked in (None, 1)] == [None, None]
    for asked, elsewhere, received in ((2, False, "workers=2"), (1, True, "a cluster")):
        with pytest.raises(UsageError, match="workers cannot import __main__:Mine") as caught:
            plan(prepared, asked, elsewhere=elsewhere)
        assert caught.value.received == received
    del prepared.missing[:-1]
    assert plan(prepared, 4).opening is None  # a single run needs no worker
