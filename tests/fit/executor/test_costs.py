"""What the records say of a run's cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor import alone
from fusionkit.fit.executor.alone import CostAlone, CostsAlone
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.loader.minibatches import InMemoryStates
from fusionkit.fit.train import result
from fusionkit.machine.memory import PeakMemory
from fusionkit.runs.record import digest_of_record
from fusionkit.specs import RunSpec
from fusionkit.store import Store


def test_a_whole_run_is_counted_up() -> None:
    cost = CostAlone(2.0, 3.0, 0.5, 0.25, 1, 1, 1)
    assert cost.seconds(epochs=4.5, scorings=2, scored_at_the_end=300) == 2 + 4.5 * 3 + 2 * 0.5 + 300 * 0.25


def test_a_record_says_what_its_run_cost(corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any) -> None:
    store, runs = corpus_store("words"), RunsFolder(tmp_path / "runs")
    fusions = ("last", "attention", "concat")
    specs = expand(store, task="tagging", fusions=fusions, head="linear-tagger", epochs=(2,), seeds=2)
    records = fit(store, specs, runs, watch)
    rows = len(store["train"].hidden_states) / len(store["train"].examples)
    layers, wide, classes = len(store.layers), store.hidden, len(records[0]["labels"])
    for record in records:
        assert 0 < record["seconds_alone"] < 60
        assert record["threads"] == torch.get_num_threads()
        weights = load_file(runs.path / digest_of_record(record) / "weights.safetensors")
        assert record["kept_bytes"] == sum(tensor.nbytes for tensor in weights.values())
        assert record["peak_memory"] > record["peak_memory_alone"] > 4 * wide * classes * 4
        assert record["training_flops"] > 2 * record["prediction_flops"] > 0
    by = {record["spec"]["fusion"]: record for record in records}
    head = 2 * rows * wide * classes
    assert by["last"]["prediction_flops"] == pytest.approx(head, rel=0.5)
    projected = by["concat"]["prediction_flops"] - 2 * rows * 256 * classes
    assert projected == pytest.approx(2 * rows * (layers - 1) * wide * 256, rel=0.5)
    frame = runs.frame()
    assert (frame["seconds_alone"] > 0).all()
    assert frame.groupby("fusion")["training_flops"].nunique().eq(1).all()  # of one kind, whatever the seed


def test_each_kind_of_run_is_measured_once(
    corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = corpus_store("words"), list[RunSpec]()
    plain = CostsAlone._measured

    def measured(costs: CostsAlone, spec: RunSpec, *sizes: int) -> CostAlone:
        asked.append(spec)
        return plain(costs, spec, *sizes)

    monkeypatch.setattr(CostsAlone, "_measured", measured)
    specs = expand(store, task="tagging", fusions=("last", "linear"), lrs=(1e-3, 1e-2), seeds=3, epochs=(1, 2))
    context = SweepContext(store)
    found = {CostsAlone(context).of(spec) for spec in specs}
    assert [spec.fusion for spec in asked] == ["last", "linear"]
    assert len(found) == 2


@pytest.mark.parametrize("held", [1 << 30, 0])
def test_rows_that_memory_does_not_hold_are_read_in_minibatches_while_a_run_is_measured(
    held: int, corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = corpus_store("words"), set[bool]()
    plain = TaskSplit.batch

    def batch(split: TaskSplit, *told: Any) -> Any:
        if len(split) == len(store["train"].examples):
            seen.add(isinstance(split.states, InMemoryStates))
        return plain(split, *told)

    monkeypatch.setattr(alone, "HELD_BYTES", held)
    monkeypatch.setattr(CostsAlone, "_counted", lambda *_: (1, 1, 1))
    monkeypatch.setattr(TaskSplit, "batch", batch)
    [spec] = expand(store, task="tagging", fusions=("linear",), epochs=(2,))
    CostsAlone(SweepContext(store)).of(spec)
    assert seen == {held > 0}


def test_the_end_of_a_run_is_charged_for_each_example_of_validation_and_test(
    corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, now = corpus_store("words"), 0.0
    plain = result.results_of

    def results_of(*told: Any) -> Any:
        nonlocal now
        now += sum(map(len, (told[1].validation, *told[1].scored_tests.values())))
        return plain(*told)

    monkeypatch.setattr("fusionkit.fit.train.loop.results_of", results_of)
    monkeypatch.setattr(alone, "clock_of", lambda _: lambda: now)
    monkeypatch.setattr(alone, "WATCHED", 3)
    monkeypatch.setattr(alone, "RATE", 1e6)
    context = SweepContext(store)
    [spec] = expand(store, task="tagging", fusions=("linear",), epochs=(2,), validate_on=4)
    cost = CostsAlone(context).of(spec)
    assert cost.start == cost.steps == cost.scoring == 0
    assert cost.ending == pytest.approx(1)


def test_measuring_leaves_no_trace_in_what_is_learned(corpus_store: Callable[[str], Store], monkeypatch: Any) -> None:
    store = corpus_store("words")
    [spec] = expand(store, task="tagging", fusions=("attention",), dropout=0.3, epochs=(2,))
    found = []
    for measured in (False, True):
        context = SweepContext(store)
        if measured:
            CostsAlone(context).of(spec)
        [(_, result)] = context.train([spec], lambda _: None)
        found.append(result.weights)  # type: ignore[union-attr]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_cpu_without_bfloat16_instructions_counts_the_same(
    corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, counted = corpus_store("words"), []
    [spec] = expand(store, task="tagging", fusions=("concat",), epochs=(1,), compute_dtype="bfloat16")
    for has in (True, False):
        for module in ("machine.bfloat16", "fit.vectorized.run_linear"):
            monkeypatch.setattr(f"fusionkit.{module}.has_bfloat16", lambda has=has: has)
        context = SweepContext(store)
        counted.append(CostsAlone(context)._counted(spec, context.data(spec)))
    assert counted[0] == counted[1]


def test_a_sample_of_large_data_is_small(corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that counts as slow takes few examples, and the seconds are counted up to all of them."""
    store = corpus_store("words")
    [spec] = expand(store, task="tagging", fusions=("linear",), batch_sizes=(2,))
    monkeypatch.setattr(alone, "RATE", 1e6)
    monkeypatch.setattr(alone, "STATES", 1)
    context, seen = SweepContext(store), list[int]()
    plain = context.train

    def train(specs: list[RunSpec], on_epoch: Any, data: TaskData, **told: Any) -> Any:
        seen.append(len(data.train))
        return plain(specs, on_epoch, data, **told)

    monkeypatch.setattr(context, "train", train)
    cost = CostsAlone(context).of(spec)
    assert all(2 <= examples < len(store["train"].examples) for examples in seen)
    assert cost.steps > 0


def test_the_peak_is_the_most_since_it_was_asked_for() -> None:
    held = torch.ones(1 << 26)  # 256 MB, to be forgotten
    before = PeakMemory(torch.device("cpu")).read()
    del held
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pytest.skip("the system lets no process reset its peak")
    peak = PeakMemory(torch.device("cpu"))
    low = peak.read()
    assert before >= 1 << 28
    assert low < before - (1 << 27)  # the 256 MB are forgotten
    again = torch.ones(1 << 25)  # 128 MB
    assert peak.read() > low + (100 << 20)
    del again
