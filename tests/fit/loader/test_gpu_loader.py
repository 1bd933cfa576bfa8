"""Minibatches that come in the same memory every time are those of any other feeder, filled up behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusionkit.dataset.batch import FILLING, SharedBuffer
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.loader.gpu import GpuLoader, GpuLoaders, padded_rows
from fusionkit.fit.loader.minibatches import GatherLoader, SeparateLoaders, layers_of_batch, load_all_into_memory
from fusionkit.fit.loader.sampler import Sampler
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.inputs import is_plain
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.machine.devices import CPU
from fusionkit.specs import RunSpec

Toy = Callable[..., TaskData]
LAYERS = (0, 2)


def test_rows_are_padded_by_less_than_half_again() -> None:
    sizes = [padded_rows(rows) for rows in range(1, 5000)]
    assert sorted(set(sizes))[:7] == [16, 24, 32, 48, 64, 96, 128]
    assert all(rows <= size for rows, size in enumerate(sizes, start=1))
    assert all(size < 1.5 * rows for rows, size in enumerate(sizes, start=1) if rows > 16)


def draws_of(split: TaskSplit, seeds: int, count: int) -> dict[int, TaskSplit]:
    plain = split.subset(np.flatnonzero(np.diff(split.offsets) > 0))
    return {seed: plain.subset(np.random.default_rng(seed).permutation(len(plain))[:count]) for seed in range(seeds)}


def feedings(draws: dict[int, TaskSplit], size: int) -> tuple[GpuLoader, SeparateLoaders]:
    orders = {seed: Sampler(draw, "shuffle", seed) for seed, draw in draws.items()}
    held = dict(zip(draws, load_all_into_memory(list(draws.values()), LAYERS), strict=True))
    plain = {seed: GatherLoader(draw, LAYERS, orders[seed], size) for seed, draw in draws.items()}
    return GpuLoader(held, orders, size, CPU), SeparateLoaders(plain)


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("size", [1, 8, 50])
def test_minibatches_are_those_that_are_gathered_one_by_one(toy: Toy, words: bool, size: int) -> None:
    draws = draws_of(toy(words=words).train, 3, 29)
    resident, plain = feedings(draws, size)
    for epoch, seeds in ((1, (0, 1, 2)), (2, (0, 1, 2)), (3, (2, 0))):
        taken = 0
        for ours, theirs in zip(resident.epoch(epoch, seeds), plain.epoch(epoch, seeds), strict=True):
            taken += 1
            found, wanted = ours.batches, theirs.batches
            assert list(found) == list(wanted) == list(seeds)
            for seed in seeds:
                rows = len(wanted[seed].targets)
                assert torch.equal(found[seed].states[:rows], wanted[seed].states)
                assert torch.equal(found[seed].targets[:rows], wanted[seed].targets)
                assert set(found[seed].targets[rows:].tolist()) <= {FILLING}
                assert torch.equal(found[seed].offsets, wanted[seed].offsets)
            if not words:
                assert {len(batch.targets) for batch in found.values()} == {len(wanted[0].targets)}
        assert taken == -(-29 // size)


def test_minibatches_of_one_place_share_their_memory_and_others_do_not(toy: Toy) -> None:
    resident, _ = feedings(draws_of(toy(words=True).train, 2, 30), 4)
    seen: dict[object, set[int]] = {}
    shapes = set()
    for epoch in range(3):
        for step in resident.epoch(epoch, (0, 1)):
            batches = step.batches
            shapes.add((len(batches[0].offsets), len(batches[0].states)))
            assert len({batch.place for batch in batches.values()}) == 1
            seen.setdefault(batches[0].place, set()).add(batches[0].states.data_ptr())
            assert batches[0].states.data_ptr() != batches[1].states.data_ptr()
    assert len(seen) > 1
    assert len(seen) == len(shapes)  # how long examples are makes no further shape, where no fusion looks at them
    assert all(len(places) == 1 for places in seen.values())
    assert len(set.union(*seen.values())) == len(seen)


def test_rows_that_several_draws_have_are_held_once(toy: Toy) -> None:
    split = toy(words=True).train
    draws = draws_of(split, 4, 40)
    held = load_all_into_memory(list(draws.values()), LAYERS)
    rows = np.unique(np.concatenate([draw.rows for draw in draws.values()]))
    assert held[0].states is held[3].states
    assert held[0].states.shape[:2] == (len(rows), len(LAYERS))
    for one, draw in zip(held, draws.values(), strict=True):
        at = np.arange(len(draw))
        assert torch.equal(one.batch(at, (0, 1)).states, draw.batch(at, LAYERS).states)


@pytest.mark.parametrize("fusion", ["linear", "attention", "concat", "dwatt", "mlp-weights"])
def test_runs_of_several_seeds_learn_from_filled_minibatches_what_each_learns_alone(toy: Toy, fusion: str) -> None:
    """One stack over all seeds, and one for each seed over minibatches of its own rows alone."""
    data = toy(words=True)
    draws = draws_of(data.train, 3, 30)
    specs = [
        RunSpec(
            store="s", task="tagging", label="x", fusion=fusion, head="tagger", data_seed=seed, init_seed=init, lr=lr,
            clip_norm=0.5 if init else None,
        )
        for seed in draws
        for init, lr in ((0, 1e-2), (1, 1e-3))
    ]  # fmt: skip
    resident, plain = feedings(draws, 8)
    together = stack_for(specs, data)
    apart = {seed: stack_for([spec for spec in specs if spec.data_seed == seed], data) for seed in draws}
    for epoch in (1, 2, 3):
        steps = zip(resident.epoch(epoch, tuple(draws)), plain.epoch(epoch, tuple(draws)), strict=True)
        for filled_up, gathered in steps:
            losses = together.step(filled_up.of(tuple(draws), (0, 1)), [spec.lr for spec in specs])
            own = [apart[s].step([gathered.batches[s]], [spec.lr for spec in apart[s].specs]) for s in draws]
            torch.testing.assert_close(losses, torch.cat(own), rtol=1e-5, atol=1e-6)
    for run, spec in enumerate(specs):
        alone = apart[spec.data_seed].weights(run % 2)
        for name, weights in together.weights(run).items():
            if not name.endswith("key.bias"):  # learns from rounding alone
                torch.testing.assert_close(weights, alone[name], rtol=1e-3, atol=1e-4)


def stack_for(specs: list[RunSpec], data: TaskData) -> Stacked:
    hidden = data.train.states.shape[2]
    return Stacked(specs, [build_model(spec, len(LAYERS), hidden, len(data.labels)) for spec in specs])


def test_an_example_without_rows_is_not_plain(toy: Toy) -> None:
    split = toy(words=True).train
    some = split.subset(np.flatnonzero(np.diff(split.offsets) > 0))
    assert is_plain(some)
    assert not is_plain(replace(some, offsets=np.append(some.offsets, some.offsets[-1])))


WHOLE = ("ladder:2", "flat:2", "extra-layers:1", "projected-attention:4")


def some_read(data: TaskData) -> dict[int, TaskSplit]:
    """Draws of which the head reads each second row, and of one example every row."""
    draws = draws_of(data.train, 2, 30)
    found = {}
    for seed, draw in draws.items():
        read = np.arange(len(draw.rows)) % 2 == 0
        read[draw.offsets[3] : draw.offsets[4]] = True
        found[seed] = replace(draw, read=read, targets=draw.targets[read])
    return found


@pytest.mark.parametrize("fusion", WHOLE)
@pytest.mark.parametrize("dropout", [False, True])
def test_runs_that_look_at_whole_examples_learn_from_filled_minibatches_what_they_learn_from_gathered_ones(
    toy: Toy, fusion: str, dropout: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is the same where a draw's minibatches are: its masks are of as many rows as there are."""
    data = toy(words=True)
    draws = some_read(data)
    orders = {seed: Sampler(draw, "shuffle", seed) for seed, draw in draws.items()}
    held = dict(zip(draws, load_all_into_memory(list(draws.values()), LAYERS), strict=True))
    together = GpuLoaders({seed: GpuLoader({seed: held[seed]}, orders, 8, CPU, whole=True) for seed in draws})
    if dropout:  # each draw as it is alone
        apart = {seed: GpuLoader({seed: held[seed]}, orders, 8, CPU, whole=True) for seed in draws}
    else:
        monkeypatch.setattr("fusionkit.fusions.narrow.DROPOUT", 0.0)
    specs = {seed: specs_for(fusion, seed) for seed in draws}
    ours, theirs = ({seed: stack_for(own, data) for seed, own in specs.items()} for _ in range(2))
    plain = SeparateLoaders({seed: GatherLoader(draw, LAYERS, orders[seed], 8) for seed, draw in draws.items()})
    for epoch in (1, 2):
        gathered = (
            zip(*(loader.epoch(epoch, (seed,)) for seed, loader in apart.items()), strict=True)
            if dropout
            else ((step,) * len(draws) for step in plain.epoch(epoch, tuple(draws)))
        )
        for filled_up, steps in zip(together.epoch(epoch, tuple(draws)), gathered, strict=True):
            for seed, step in zip(draws, steps, strict=True):
                rates = [spec.lr for spec in specs[seed]]
                losses = ours[seed].step(filled_up.of((seed,), (0, 1)), rates)
                torch.testing.assert_close(losses, theirs[seed].step(step.of((seed,), (0, 1)), rates))
    for seed in draws:
        for run in range(2):
            other = theirs[seed].weights(run)
            for name, weights in ours[seed].weights(run).items():
                if not name.endswith("key.bias"):
                    torch.testing.assert_close(weights, other[name], rtol=1e-3, atol=1e-4)


def specs_for(fusion: str, seed: int, pool: str | None = None) -> list[RunSpec]:
    task, head = ("tagging", "tagger") if pool is None else ("classification", "classifier")
    return [
        RunSpec(
            store="s", task=task, label="x", fusion=fusion, head=head, data_seed=seed, init_seed=init, lr=1e-3,
            clip_norm=0.5, pool=pool,
        )
        for init in (0, 1)
    ]  # fmt: skip


def sentences(data: TaskData) -> dict[int, TaskSplit]:
    """Draws of which each example has one class."""
    found = {}
    for seed, draw in draws_of(data.train, 2, 30).items():
        classes = np.random.default_rng(seed).integers(0, len(data.labels), len(draw))
        gold = [data.labels[k] for k in classes]
        found[seed] = replace(draw, targets=classes, kept=None, word_offsets=None, gold=gold)
    return found


@pytest.mark.parametrize("fusion", ["attention", "flat:2"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooled_rows_learn_from_filled_minibatches_what_they_learn_from_gathered_ones(
    toy: Toy, fusion: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionkit.fusions.narrow.DROPOUT", 0.0)
    data = toy(words=True)
    draws = sentences(data)
    orders = {seed: Sampler(draw, "shuffle", seed) for seed, draw in draws.items()}
    held = dict(zip(draws, load_all_into_memory(list(draws.values()), LAYERS), strict=True))
    plain = SeparateLoaders({seed: GatherLoader(draw, LAYERS, orders[seed], 8) for seed, draw in draws.items()})
    learned = []
    whole = fusion in WHOLE
    own = {seed: GpuLoader({seed: held[seed]}, orders, 8, CPU, pooled=True, whole=whole) for seed in draws}
    for loader in (GpuLoaders(own), plain):
        stacks = {seed: stack_for(specs_for(fusion, seed, pool), data) for seed in draws}
        losses = [
            stacks[seed].step(step.of((seed,), (0, 1)), [1e-3, 1e-3])
            for epoch in (1, 2)
            for step in loader.epoch(epoch, tuple(draws))
            for seed in draws
        ]
        learned.append((torch.stack(losses), stacks))
    (ours, filled_up), (theirs, gathered) = learned
    torch.testing.assert_close(ours, theirs)
    for seed in draws:
        for run in range(2):
            other = gathered[seed].weights(run)
            for name, weights in filled_up[seed].weights(run).items():
                if not name.endswith("key.bias"):
                    torch.testing.assert_close(weights, other[name], rtol=1e-3, atol=1e-4)


class WaitingError(Exception):
    """Work asks for a number, or makes a tensor whose shape depends on numbers: a GPU cannot record that."""


class NothingIsWaitedFor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where the host would have to wait for a device. It does not see ``tolist``, by which the numbers of runs,
    which are the CPU's, are read.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_numbers = name == "repeat_interleave" and "Tensor" in func._overloadname
        asks = name in self.WAITING or (by_numbers and (kwargs or {}).get("output_size") is None)
        if name in ("index", "index_put", "index_put_"):
            asks = any(at is not None and at.dtype == torch.bool for at in args[1])
        if asks:
            raise WaitingError(str(func))
        return func(*args, **(kwargs or {}))


def waiting_found() -> AbstractContextManager[Any]:
    """Raises :class:`WaitingError` for work that waits."""
    return NothingIsWaitedFor()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("fusion", [*WHOLE, "linear", "attention", "concat", "dwatt", "element-wise"])
@pytest.mark.parametrize("pool", [None, "mean", "max"])
def test_what_a_gpu_would_record_waits_for_no_number(
    toy: Toy, fusion: str, pool: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy(words=True)
    apart = fusion in WHOLE or pool is not None
    draws = sentences(data) if pool else some_read(data) if apart else draws_of(data.train, 2, 30)
    orders = {seed: Sampler(draw, "shuffle", seed) for seed, draw in draws.items()}
    held = dict(zip(draws, load_all_into_memory(list(draws.values()), LAYERS), strict=True))
    loader = GpuLoader({0: held[0]} if apart else held, orders, 8, CPU, pool is not None, fusion in WHOLE)
    seeds = (0,) if apart else (0, 1)
    stack = stack_for([spec for seed in seeds for spec in specs_for(fusion, seed, pool)], data)
    done: list[str] = []

    class Graphs:
        def do(self, place: SharedBuffer, what: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
            with waiting_found(), monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "numpy", lambda *given, **named: pytest.fail("read by the host"))
                found = work()
            done.append(what)
            return found

    stack._graphs = Graphs()  # type: ignore[assignment]
    stack._rates = torch.zeros(len(stack.specs))
    for step in loader.epoch(0, seeds):
        stack.step(step.of(seeds, (0, 1)), [1e-3] * len(stack.specs))
    split = next(iter(draws.values()))
    batch = replace(split.batch(np.arange(9), LAYERS), place=SharedBuffer(), longest=int(np.diff(split.offsets).max()))
    stack.decide(batch)
    assert set(done) == {"loss", "decide"}


def test_what_waits_for_a_number_is_found() -> None:
    x = torch.arange(4.0)
    for work in (lambda: x[x > 1], lambda: x.sum().item(), lambda: torch.repeat_interleave(x, x.long())):
        with pytest.raises(WaitingError), waiting_found():
            work()


def test_a_place_goes_along_with_layers_that_are_no_copy(toy: Toy) -> None:
    batch = replace(toy().train.batch(np.arange(3), (0, 1, 2)), place=(place := SharedBuffer()))
    assert layers_of_batch(batch, (1, 2)).place is place
    assert layers_of_batch(batch, (0, 2)).place is None


class Replays:
    """In the place of :class:`CudaGraphs`: works at once, and checks that each time it reads the same memory."""

    def __init__(self) -> None:
        self.seen: dict[tuple[SharedBuffer, str], tuple[int, ...]] = {}
        self.again = 0

    def do(self, place: SharedBuffer, what: str, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        found = inspect.getclosurevars(work).nonlocals
        batches = found["batches"] if "batches" in found else [found["batch"]]
        tensors = [x for b in batches for x in (b.states, b.targets, b.offsets, b.read_offsets)]
        tensors += [found[name] for name in ("narrow", "on_device") if isinstance(found.get(name), torch.Tensor)]
        memory = tuple(tensor.data_ptr() for tensor in tensors)
        assert self.seen.setdefault((place, what), memory) == memory
        self.again += 1
        return work()


@pytest.mark.parametrize("layers", [(0, 1), (1,), (1, 0)])
def test_what_would_be_replayed_reads_the_same_memory_each_time(toy: Toy, layers: tuple[int, ...]) -> None:
    """Also while seeds come and go; layers that must be copied are not replayed at all."""
    data = toy(words=True)
    draws = draws_of(data.train, 3, 20)
    resident, _ = feedings(draws, 4)
    again = 0
    for round_, seeds in enumerate(((0, 1, 2), (1, 2, 0), (0, 1, 2), (2,), (0, 1, 2))):
        specs = [
            RunSpec(store="s", task="tagging", label="x", fusion="linear", head="tagger", data_seed=seed)
            for seed in seeds
        ]
        hidden, classes = data.train.states.shape[2], len(data.labels)
        stack = Stacked(specs, [build_model(spec, len(layers), hidden, classes) for spec in specs])
        replays = Replays()
        stack._graphs = replays  # type: ignore[assignment]
        stack._rates = torch.zeros(len(seeds))
        for epoch in (2 * round_, 2 * round_ + 1):
            for step in resident.epoch(epoch, seeds):
                stack.step(step.of(seeds, layers), [1e-3] * len(seeds))
        again += replays.again
    assert again == (0 if layers == (1, 0) else 5 * 2 * 5)
