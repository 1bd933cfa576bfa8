"""A split that is read a few chunks at a time is trained on as from memory, and every row is read once an epoch."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusionkit.fit.loader.sampler
import fusionkit.fit.train.decisions
import fusionkit.fit.train.inputs
from fusionkit.dataset.batch import Batch
from fusionkit.dataset.concatenation import join_splits
from fusionkit.dataset.draws import WINDOW_CHUNKS
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.pooled import pooled
from fusionkit.dataset.share import Share
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.executor.units import plan_units
from fusionkit.fit.loader.minibatches import GatherLoader, load_into_memory
from fusionkit.fit.loader.sampler import Sampler, begin_chunks
from fusionkit.fit.loader.streaming import StreamingLoader
from fusionkit.fit.train.loop import train_run, train_unit
from fusionkit.fit.train.result import RunResult
from fusionkit.specs import RunSpec
from fusionkit.store import Store

Toy = Callable[..., TaskData]
ALL, HIDDEN, HEIGHT = (0, 1, 2), 6, 7


def spec_of(data: TaskData, **fields: Any) -> RunSpec:
    plain = {"store": "s", "task": data.task.name, "label": "x", "fusion": "linear", "head": data.task.heads[0]}
    return RunSpec(**{**plain, "order": "window", "epochs": 2, "batch_size": 8, **fields})


def batches(feeder: Any, epoch: int) -> list[Batch]:
    return list(feeder.epoch(epoch))


def assert_same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other) > 0
    for mine, theirs in zip(one, other, strict=True):
        for name in ("states", "offsets", "targets", "read", "read_offsets"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a is b is None or torch.equal(a, b), name
        assert mine.states.is_contiguous()
        assert mine.others.keys() == theirs.others.keys()
        for task, own in mine.others.items():
            assert_same([own], [theirs.others[task]])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How often each byte-run of each file of train was read: by file and offset, its length."""
    found: Counter[tuple[str, int]] = Counter()
    real = os.preadv

    def counted(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        done = real(file, buffers, offset, flags)
        path = str(Path(f"/proc/self/fd/{file}").readlink())
        if "/train/" in path:
            for at in range(offset, offset + done, 4):
                found[path, at] += 1
        return done

    monkeypatch.setattr(os, "preadv", counted)
    return found


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("size", [1, 8, 50])
def test_streamed_minibatches_are_those_of_memory(toy: Toy, words: bool, size: int) -> None:
    """The order is the same whether or not the split fits, and the numbers are too. 50 are more than a window has."""
    split = toy(words=words, height=HEIGHT).train
    streamed, layers = StreamingLoader(split, (0, 2), Sampler(split, "window", 3), size), (0, 1)
    held = GatherLoader(load_into_memory(split, (0, 2)), layers, Sampler(split, "window", 3), size)
    for epoch in (1, 2):
        assert len(batches(held, epoch)) == -(-60 // size)
        assert_same(batches(streamed, epoch), batches(held, epoch))


def test_an_epoch_has_every_example_once_in_an_order_of_its_own(toy: Toy) -> None:
    split = toy(words=True, height=HEIGHT).train
    orders = []
    for seed, epoch in ((0, 1), (0, 2), (1, 1), (0, 1)):
        order = Sampler(split, "window", seed).examples(epoch)
        found = torch.cat(
            [batch.states for batch in StreamingLoader(split, ALL, Sampler(split, "window", seed), 8).epoch(epoch)]
        )
        bounds = [np.arange(split.offsets[i], split.offsets[i + 1]) for i in order]
        assert torch.equal(found, split.states.gather(np.concatenate(bounds)))
        assert sorted(order) == list(range(60))
        orders.append(order.tolist())
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_every_row_is_read_once_an_epoch_also_where_examples_cross_chunks(toy: Toy, read: Counter[Any]) -> None:
    split = toy(words=True, height=HEIGHT).train
    begins, ends = split.offsets[:-1] // HEIGHT, (split.offsets[1:] - 1) // HEIGHT
    assert (begins < ends).sum() > 10  # they do
    for epoch in (1, 2):
        batches(StreamingLoader(split, (1, 2), Sampler(split, "window", 0), 8), epoch)
        assert len(read) == len(split.rows) * 2 * HIDDEN
        assert set(read.values()) == {epoch}


def test_a_chunk_comes_in_one_window_and_at_most_its_first_rows_in_another(toy: Toy, read: Counter[Any]) -> None:
    split = toy(words=True, height=HEIGHT).train
    order = Sampler(split, "window", 0)
    assert len(order.windows(1)) == -(-int(begin_chunks(split).max() + 1) // WINDOW_CHUNKS) > 4
    for window in order.windows(1):
        read.clear()
        states: Any = split.states
        rows = np.concatenate([np.arange(split.offsets[i], split.offsets[i + 1]) for i in np.sort(window)])
        states.load(rows, ALL)
        chunks = set((split.offsets[window] // HEIGHT).tolist())
        others = rows[~np.isin(rows // HEIGHT, sorted(chunks))]
        assert len(chunks) <= WINDOW_CHUNKS
        assert (others % HEIGHT < 5).all()  # tails of at most four rows
        assert len(read) == len(rows) * len(ALL) * HIDDEN


def test_a_window_of_means_has_the_memory_of_all_their_rows(toy: Toy) -> None:
    split = toy(words=True, height=HEIGHT).train
    rows = replace(split, targets=split.targets[:60], kept=None, word_offsets=None)
    memory = [StreamingLoader(each, ALL, Sampler(each, "window", 0), 8).memory for each in (rows, pooled(rows))]
    assert memory[0] == memory[1] > 0


def scattered(data: TaskData) -> TaskSplit:
    """Pairs of two sequences each, whose rows lie anywhere, some of them shared."""
    split = data.train
    rng = np.random.default_rng(4)
    return replace(
        split,
        rows=rng.choice(len(split.rows), len(split.rows)),
        targets=split.targets[:30],
        gold=split.gold[:30],
        ids=split.ids[:30],
        kept=None,
        word_offsets=None,
        sides=2,
    )


@pytest.mark.parametrize("kind", ["pairs", "draw", "whole", "joint", "mix", "empty"])
def test_all_kinds_of_splits_stream(toy: Toy, tmp_path: Path, kind: str) -> None:
    data = toy(words=True, height=HEIGHT)
    split = data.train
    if kind == "pairs":
        split = scattered(data)
    elif kind == "draw":
        split = split.subset(np.arange(3, 60, 4))
    elif kind == "whole":  # the head reads each example's first row
        split = replace(split, read=np.isin(np.arange(len(split.rows)), split.offsets[:-1]), kept=None)
        split = replace(split, targets=split.targets[:60], word_offsets=None)
    elif kind == "joint":
        intents = replace(split, targets=split.targets[:60], kept=None, word_offsets=None, others={"slots": split})
        split = replace(intents, read=np.isin(np.arange(len(split.rows)), split.offsets[:-1]))
    elif kind == "mix":
        split = join_splits([("a", split, (0, 2)), ("b", data.validation, (2, 1))])
        assert len(np.unique(begin_chunks(split))) > begin_chunks(data.train).max() + 10
    elif kind == "empty":  # the first and the last example have no row
        lengths = np.diff(split.offsets)
        gone = np.isin(np.repeat(np.arange(60), lengths), [0, 59])
        lengths[[0, 59]] = 0
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        split = replace(
            split, rows=split.rows[~gone], targets=split.targets[~gone], offsets=offsets, kept=None, word_offsets=None
        )
        split = replace(split, targets=split.targets[:60])
    layers = (0, 1)
    streamed = batches(StreamingLoader(split, layers, Sampler(split, "window", 1), 7), 1)
    assert_same(streamed, batches(GatherLoader(split, layers, Sampler(split, "window", 1), 7), 1))
    assert sum(len(batch.states) for batch in streamed) == len(split.rows)


def same_outcome(one: RunResult, other: RunResult) -> None:
    assert one.curve == other.curve
    assert one.scores == other.scores
    assert one.weights.keys() == other.weights.keys()
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.parametrize("words", [False, True])
def test_what_a_run_learns_does_not_depend_on_what_fits_in_memory(
    toy: Toy, words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = toy(words=words, height=HEIGHT)
    spec = spec_of(data)
    held = train_run(spec, data, ALL, HIDDEN, lambda: None)
    assert len(held.curve) == 2
    monkeypatch.setattr(fusionkit.fit.train.inputs, "HELD_BYTES", 0)
    same_outcome(train_run(spec, data, ALL, HIDDEN, lambda: None), held)
    monkeypatch.setattr(fusionkit.fit.train.decisions, "STREAMED_BYTES", 0)
    scored = train_run(spec, data, ALL, HIDDEN, lambda: None)  # validation and test too, chunk by chunk
    assert scored.scores == held.scores
    assert scored.layer_weights == pytest.approx(held.layer_weights, rel=1e-5)
    other = train_run(replace(spec, order="shuffle"), data, ALL, HIDDEN, lambda: None)
    assert other.curve != held.curve


def test_runs_of_a_unit_share_the_reading_and_learn_what_they_learn_alone(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, read: Counter[Any]
) -> None:
    monkeypatch.setattr(fusionkit.fit.train.inputs, "HELD_BYTES", 0)
    data = toy(words=True, height=HEIGHT)
    base = spec_of(data)
    specs = [base, replace(base, lr=5e-4), replace(base, init_seed=1), replace(base, fusion="attention")]
    together = dict(train_unit(specs, data, lambda _: ALL, HIDDEN, lambda _: None))
    assert set(read.values()) == {2}  # epochs
    for spec in specs:
        alone, outcome = train_run(spec, data, ALL, HIDDEN, lambda: None), together[spec]
        assert isinstance(outcome, RunResult)
        for name, weight in alone.weights.items():
            assert torch.allclose(outcome.weights[name], weight, rtol=1e-4, atol=1e-5), name
        assert [point["validation_score"] for point in outcome.curve] == [p["validation_score"] for p in alone.curve]


def test_scoring_chunk_by_chunk_reads_each_row_once_for_all_runs(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, read: Counter[Any]
) -> None:
    data = toy(words=True, height=HEIGHT)
    data = dataclasses.replace(data, validation=data.train)  # whose reads are counted
    monkeypatch.setattr(fusionkit.fit.train.inputs, "HELD_BYTES", 0)
    monkeypatch.setattr(fusionkit.fit.train.decisions, "STREAMED_BYTES", 0)
    base = spec_of(data, fusion="last")
    list(train_unit([base, replace(base, lr=1e-4)], data, lambda _: (2,), HIDDEN, lambda _: None))
    # Two epochs of training, two scorings of both runs, and one look for layer weights, which `last` has none of.
    assert set(read.values()) == {4, 5}
    assert sum(times == 5 for times in read.values()) < len(read) / 4  # the first block, and the window read ahead
    assert len(read) == len(data.train.rows) * HIDDEN


def test_runs_of_several_seeds_are_units_of_their_own_where_they_go_window_by_window(toy: Toy) -> None:
    data = toy()
    specs = [spec_of(data, data_seed=seed, lr=lr) for seed in (0, 1) for lr in (1e-3, 1e-2)]
    assert [{spec.data_seed for spec in unit} for unit in plan_units(specs)] == [{0}, {1}]
    assert len(plan_units([replace(spec, order="shuffle") for spec in specs])) == 1
    assert len(plan_units([specs[0], replace(specs[0], order="shuffle")])) == 2


def test_the_usual_order_is_by_the_size_of_train_and_of_nothing_else(
    corpus_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = corpus_store("words")
    rows = len(store["train"].hidden_states)

    def orders(**fields: Any) -> list[str]:
        return [spec.order for spec in expand(store, task="tagging", fusions=("last",), **fields)]

    assert orders() == ["shuffle"]
    assert orders(order="window") == orders(order="window", shots=(1,)) == ["window"]
    monkeypatch.setattr(fusionkit.fit.loader.sampler, "AUTO_BYTES", 4 * rows * 7 * 384)
    assert orders() == ["shuffle"]
    monkeypatch.setattr(fusionkit.fit.loader.sampler, "AUTO_BYTES", 4 * rows * 7 * 384 - 1)
    assert orders(shots=(None, 1)) == ["window", "shuffle"]
    assert orders(order="shuffle") == ["shuffle"]
    assert fusionkit.fit.loader.sampler.usual_order(Mix([Share(store, "50%")])) == "shuffle"


def test_a_sweep_that_was_stopped_between_runs_ends_as_one_that_was_not(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusionkit.fit.train.inputs, "HELD_BYTES", 0)
    store = corpus_store("words")
    specs = expand(store, task="tagging", fusions=("last",), seeds=2, epochs=(2,), batch_sizes=(2,), order="window")
    whole = fit(store, specs, RunsFolder(tmp_path / "whole"), watch)
    stopped = RunsFolder(tmp_path / "stopped")
    fit(store, specs[1:], stopped, watch)
    records = fit(store, specs, stopped, watch)
    assert [record["curve"] for record in records] == [record["curve"] for record in whole]
    assert [record["scores"] for record in records] == [record["scores"] for record in whole]
    assert [record["spec"]["order"] for record in records] == ["window", "window"]
