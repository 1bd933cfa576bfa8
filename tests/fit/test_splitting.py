"""Memory that runs out halves a stack, and its runs go on as if nothing had happened."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.dataset.batch import Batch
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.train.evaluate import decide_all
from fusionkit.fit.vectorized import stack as stacks
from fusionkit.fit.vectorized import width
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.oom_split import Splitting
from fusionkit.fit.vectorized.stack import Stacked, stack_of
from fusionkit.fit.vectorized.width import STACK_BYTES, even, width_of
from fusionkit.memory import PeakMemory
from fusionkit.specs import RunSpec
from fusionkit.store import Store

LAYERS, HIDDEN, CLASSES, STEPS = 3, 16, 5, 6


def specs_of(runs: int, fusion: str = "attention", seeds: int = 1) -> list[RunSpec]:
    """Runs of some data seeds that differ in seed, rate and clipping."""
    base = RunSpec(store="s", task="t", label="l", fusion=fusion, head="tagger", dropout=0.3)
    return [
        replace(base, data_seed=k * seeds // runs, init_seed=k, lr=1e-3 * (k % 2 + 1), clip_norm=k % 3 or None)
        for k in range(runs)
    ]


def stack_for(specs: Sequence[RunSpec], layers: int = LAYERS, hidden: int = HIDDEN) -> Any:
    models = [model_of(spec, layers, hidden, {"": CLASSES}, 1).double() for spec in specs]
    return stack_of(specs, models)


def batch_of(rows: int, seed: int, layers: int = LAYERS, hidden: int = HIDDEN) -> Batch:
    random = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, layers, hidden, generator=random, dtype=torch.float64)
    offsets = torch.arange(rows + 1)
    return Batch(states, offsets, torch.randint(CLASSES, (rows,), generator=random), None, offsets)


def same_weights(one: Any, other: Any) -> None:
    for run in range(len(one.specs)):
        found, expected = one.weights(run), other.weights(run)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float((found[name] - value).abs().max()) < 1e-9


def short_of(place: str, most: int, calls: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Real allocations that nobody can make, in stacks of more runs than ``most``: at these calls of one place."""
    owner, name = {"backward": (torch.autograd, "grad"), "scores": (Stacked, "_call")}.get(place, (stacks, place))
    plain: Callable[..., Any] = getattr(owner, name)
    counted = [0]

    def tried(*given: Any, **named: Any) -> Any:
        found = plain(*given, **named)  # what comes before, dropout's numbers too, has been taken
        counted[0] += 1
        runs = len(found) if isinstance(found, torch.Tensor) else len(found[0])
        if runs > most and counted[0] in calls:
            torch.empty(1 << 50)
        return found

    monkeypatch.setattr(owner, name, tried)


@pytest.mark.parametrize("fusion", ["attention", "concat", "dwatt"])
@pytest.mark.parametrize("place", ["backward", "scores"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_stack_that_runs_out_of_memory_is_halved_and_takes_the_same_steps(
    fusion: str, place: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = specs_of(6, fusion, seeds)
    feeds = [[batch_of(20, 10 * step + seed) for seed in range(seeds)] for step in range(STEPS)]
    told: list[int] = []
    whole, halved = stack_for(specs), Splitting(stack_for(specs), told.append)
    expected = [whole.step(batches, [spec.lr for spec in specs]) for batches in feeds]
    with monkeypatch.context() as patch:
        short_of(place, 2, range(3, 99), patch)
        found = [halved.step(batches, [spec.lr for spec in specs]) for batches in feeds]
    assert told == [3, 2, 2]
    assert [spec.init_seed for spec in halved.specs] == list(range(6))
    assert torch.allclose(torch.stack(found), torch.stack(expected), rtol=0, atol=1e-9)
    same_weights(halved, whole)
    same = zip(halved.decide(batch_of(50, 7)), whole.decide(batch_of(50, 7)), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    for stack in (halved, whole):  # halves lose runs as the whole does: all of one, the first of another
        stack.keep([1, 4, 5])
        batches = feeds[0] if seeds == 1 else [feeds[0][0], feeds[0][2]]
        stack.step(batches, [spec.lr for spec in stack.specs])
    assert halved.specs == whole.specs == [specs[1], specs[4], specs[5]]
    same_weights(halved, whole)
    assert torch.equal(halved.model(2).state_dict()["head.score.0.weight"], halved.weights(2)["head.score.0.weight"])


def test_a_stack_halved_while_it_decides_decides_the_same_and_learns_on(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(5)
    told: list[int] = []
    whole, halved = stack_for(specs), Splitting(stack_for(specs), told.append)
    rates = [spec.lr for spec in specs]
    for stack in (whole, halved):
        stack.step([batch_of(20, 0)], rates)
    with monkeypatch.context() as patch, torch.inference_mode():
        short_of("scores", 2, range(99), patch)
        found = halved.decide(batch_of(600, 1))
    assert told == [3, 2]
    assert all(torch.equal(one, other) for one, other in zip(found, whole.decide(batch_of(600, 1)), strict=True))
    for stack in (whole, halved):
        stack.step([batch_of(20, 2)], rates)
    same_weights(halved, whole)


def test_one_run_alone_that_runs_out_of_memory_and_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = Splitting(stack_for(specs_of(2)), lambda runs: None)
    with monkeypatch.context() as patch:
        short_of("backward", 0, range(99), patch)
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
            halved.step([batch_of(20, 0)], [1e-3] * 2)
    with pytest.raises(RuntimeError, match="size"):
        Splitting(stack_for(specs_of(2)), lambda runs: None).step([batch_of(20, 0, hidden=7)], [1e-3] * 2)
    single = Splitting(stack_for(specs_of(1)), lambda runs: None)
    assert isinstance(stack_for(specs_of(1)), LoopedRuns)
    assert single.step([batch_of(20, 0)], [1e-3]).shape == (1,)


def all_that_is_free(piece: int) -> list[torch.Tensor]:
    """What the C library kept of what earlier tests freed, in pieces of so many bytes: the limit does not count it."""
    held = []
    with suppress(RuntimeError):  # the limit: from here on it would be new memory
        while True:
            held.append(torch.empty(piece, dtype=torch.uint8))
    return held


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mapped memory on Linux alone")
def test_a_process_whose_memory_is_limited_trains_in_halves() -> None:
    """The kernel's own refusal: half of what the step of the whole stack takes."""
    rows, hidden = 4200, 16  # with all runs pieces of more than 32 MiB
    specs = specs_of(4, "last")
    batch = batch_of(rows, 0, 1, hidden)
    rates, told = [1e-3] * 4, list[int]()
    whole = stack_for(specs, 1, hidden)
    with PeakMemory() as peak:
        expected = whole.step([batch], rates)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    for share in (0.7, 0.6, 0.5, 0.4, 0.3):
        stack = Splitting(stack_for(specs, 1, hidden), told.append)
        lines = Path("/proc/self/status").read_text().splitlines()
        taken = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (taken, before[1]))
            at_hand = all_that_is_free(16 << 20)
            resource.setrlimit(resource.RLIMIT_DATA, (taken + round(share * peak.grown), before[1]))
            found = stack.step([batch], rates)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        del at_hand
        if told:
            break
    assert told[:1] == [2]
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)
    same_weights(stack, whole)


def test_stacks_are_as_wide_as_gains_and_memory_allow() -> None:
    run, states = 4 << 20, 3 << 20
    unit = [run] * 48
    assert width_of(run, states, unit, None) == STACK_BYTES // (4 * run) == 16
    held = 4 * sum(unit)
    assert width_of(run, states, unit, held + 8 * (run + states)) == 8
    assert width_of(run, states, unit, held + 8 * (run + states) - 1) == 7
    assert width_of(run, states, unit, 0) == 1
    assert width_of(run, states, unit, held + 20 * (run + states)) == 16
    assert width_of(run, states, unit, held + 20 * (run + states), cached=False) == 20
    assert width_of(run, states, unit, 1 << 50, cached=False) == 48


@pytest.mark.parametrize(
    ("count", "width", "together", "sizes"),
    [
        (4, 3, 1, [2, 2]), (5, 3, 1, [2, 3]), (6, 3, 1, [3, 3]), (2, 9, 1, [2]), (3, 1, 1, [1] * 3),
        (24, 10, 3, [6, 9, 9]), (24, 23, 3, [12, 12]), (24, 2, 3, [2] * 12), (7, 4, 3, [3, 4]), (6, 6, 6, [6]),
    ],
)  # fmt: skip
def test_stacks_of_one_shape_are_of_one_size_or_nearly(count: int, width: int, together: int, sizes: list[int]) -> None:
    stacks = even(count, width, together)
    assert [len(stack) for stack in stacks] == sizes
    assert [run for stack in stacks for run in stack] == list(range(count))


def test_a_sweep_short_of_memory_says_so_once_and_gives_the_same(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = corpus_store("words")
    chosen: dict[str, Any] = {"fusions": ("linear",), "head": "tagger", "shots": (2,), "epochs": (2,), "dropout": 0.1}
    (base,) = expand(store, task="tagging", seeds=1, **chosen)
    specs = [replace(base, init_seed=seed) for seed in range(5)]
    plain = fit(store, specs, RunsFolder(tmp_path / "plain"), watch)
    assert not [line for line in watch.said if "memory" in line]
    monkeypatch.setattr(width, "spare_memory", lambda: 0)
    narrow = fit(store, specs, RunsFolder(tmp_path / "narrow"), watch)
    assert [line for line in watch.said if "memory" in line] == ["stacks of at most 1 run: memory"]
    assert [each["scores"] for each in narrow] == [each["scores"] for each in plain]
    monkeypatch.undo()
    short_of("backward", 2, range(2, 99), monkeypatch)
    halved = fit(store, specs, RunsFolder(tmp_path / "halved"), watch)
    assert watch.said[-2:] == ["stacks of at most 3 runs: memory", "stacks of at most 2 runs: memory"]
    assert [each["scores"] for each in halved] == [each["scores"] for each in plain]
    for one, other in zip(halved, plain, strict=True):
        losses = [epoch["loss"] for epoch in other["curve"]]
        assert [epoch["loss"] for epoch in one["curve"]] == pytest.approx(losses, rel=1e-6)


def test_runs_that_end_are_scored_in_halves_where_memory_runs_out(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("attention",), init_seeds=4, epochs=(1,))
    plain = fit(store, specs, RunsFolder(tmp_path / "plain"), watch)
    scored = decide_all
    narrow: list[int] = []

    def short(stacks: Any, *given: Any) -> Any:
        with monkeypatch.context() as patch:
            short_of("scores", 2, range(99), patch)
            found = scored(stacks, *given)
        narrow.append(len(stacks[0][0]._pieces))
        return found

    monkeypatch.setattr("fusionkit.fit.train.result.decide_all", short)
    halved = fit(store, specs, RunsFolder(tmp_path / "halved"), watch)
    assert narrow == [2]  # of the test split
    assert [record["scores"] for record in halved] == [record["scores"] for record in plain]


def test_a_step_that_fails_leaves_the_common_random_numbers_as_they_were() -> None:
    row = stack_for(specs_of(1))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="size"):
        row.step([batch_of(20, 0, hidden=7)], [1e-3])
    assert torch.equal(torch.get_rng_state(), before)
