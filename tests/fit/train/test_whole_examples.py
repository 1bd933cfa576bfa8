"""Fusions that look at whole examples: all rows go in, the head reads those it always reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.decisions import predict
from fusionkit.fit.train.loop import train_run
from fusionkit.specs import RunSpec
from fusionkit.store import Store

CorpusStore = Callable[[str], Store]
LAYERS = (5,)
# Kind of rows, task, pool, and whether the head reads all of the rows.
LAYOUTS = [
    ("tokens", "tagging", None, False),
    ("tokens", "classification", "cls", False),
    ("tokens", "classification", "last", False),
    ("tokens", "classification", "mean", True),
    ("tokens", "classification", "max", True),
    ("words", "tagging", None, True),
    ("words-mean", "tagging", None, True),
    ("words", "classification", "mean", True),
]  # fmt: skip

each_layout = pytest.mark.parametrize(("rows", "task", "pool", "all_read"), LAYOUTS)


def loaded(store: Store, task: str, pool: str | None, whole: bool) -> TaskData:
    return load_task(store, *choose_task(store, task, None), pool, whole)


def spec_of(data: TaskData, **fields: Any) -> RunSpec:
    given: dict[str, Any] = {
        "store": "s",
        "task": data.task.name,
        "label": data.label,
        "head": data.task.heads[0],
        "pool": data.pool,
    }
    return RunSpec(**given, fusion="extra-layers:1", **fields)


@each_layout
def test_a_batch_holds_all_rows_with_a_state_and_says_which_are_read(
    rows: str, task: str, pool: str | None, all_read: bool, corpus_store: CorpusStore
) -> None:
    store = corpus_store(rows)
    narrow, whole = loaded(store, task, pool, False), loaded(store, task, pool, True)
    for split in ("train", "validation", "test"):
        few, all_rows = getattr(narrow, split), getattr(whole, split)
        order = np.arange(len(few))[::-1]
        less, batch = few.batch(order, LAYERS), all_rows.batch(order, LAYERS)
        taken = [store[split].take([int(few.ids[i].rpartition("-")[2])], LAYERS) for i in order]
        stated = [torch.from_numpy(one.row_mask) for one in taken]
        expected = [one.hidden_states.float()[mask] for one, mask in zip(taken, stated, strict=True)]
        assert torch.equal(batch.states, torch.cat(expected))
        assert batch.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert (batch.read is None) == all_read
        read = slice(None) if batch.read is None else batch.read
        assert torch.equal(batch.states[read], less.states)
        assert torch.equal(batch.targets, less.targets)
        assert torch.equal(batch.read_offsets, less.offsets)
        assert torch.equal(less.read_offsets, less.offsets)


@each_layout
def test_a_subset_keeps_each_examples_rows_targets_and_what_is_read(
    rows: str, task: str, pool: str | None, all_read: bool, corpus_store: CorpusStore
) -> None:
    train = loaded(corpus_store(rows), task, pool, True).train
    chosen = np.array([5, 0, 2])
    ours, theirs = train.subset(chosen).batch(np.arange(3), LAYERS), train.batch(chosen, LAYERS)
    assert torch.equal(ours.states, theirs.states)
    assert torch.equal(ours.targets, theirs.targets)
    assert torch.equal(ours.offsets, theirs.offsets)
    assert torch.equal(ours.read_offsets, theirs.read_offsets)
    assert (ours.read is None) == (theirs.read is None) == all_read
    assert ours.read is None or (theirs.read is not None and torch.equal(ours.read, theirs.read))


@each_layout
def test_each_example_is_scored_from_all_of_its_own_rows(
    rows: str, task: str, pool: str | None, all_read: bool, corpus_store: CorpusStore
) -> None:
    data = loaded(corpus_store(rows), task, pool, True)
    model = build_model(spec_of(data, init_seed=5), 1, 384, len(data.labels)).eval()
    scores: list[Tensor] = []
    with torch.no_grad():
        for example in range(len(data.train)):
            batch = data.train.batch(np.array([example]), LAYERS)
            fused = model.fusion(batch.states, torch.tensor([0, len(batch.states)]))
            seen = fused if batch.read is None else fused[batch.read]
            if pool in ("mean", "max"):
                seen = (seen.mean(0) if pool == "mean" else seen.amax(0))[None] if len(seen) else torch.zeros(1, 384)
            scores.append(model.head(seen, torch.tensor([0, len(seen)])))
        whole = data.train.batch(np.arange(len(data.train)), LAYERS)
        found = model(whole.states, whole.offsets, whole.read)
    torch.testing.assert_close(found, torch.cat(scores), rtol=1e-4, atol=1e-5)
    classes = [data.labels[k] for k in torch.cat(scores).argmax(1)]
    decided = predict(model, data, data.train, LAYERS)
    if data.train.kept is not None:
        flat = [tag for tags in decided for tag in tags]
        decided = [tag for tag, kept in zip(flat, data.train.kept, strict=True) if kept]
    assert decided == classes


def test_what_a_run_learns_depends_on_the_rows_around_those_that_are_read(corpus_store: CorpusStore) -> None:
    """The special tokens and later sub-tokens of a word: rows of words alone give another run."""
    data, words = (loaded(corpus_store(rows), "tagging", None, True) for rows in ("tokens", "words"))
    assert torch.equal(
        loaded(corpus_store("tokens"), "tagging", None, False).train.batch(np.arange(8), LAYERS).states,
        words.train.batch(np.arange(8), LAYERS).states,
    )
    spec = spec_of(data, epochs=1)
    one, other = (train_run(spec, each, LAYERS, 384, lambda: None) for each in (data, words))
    assert one.curve[0]["loss"] != other.curve[0]["loss"]
    assert train_run(replace(spec), data, LAYERS, 384, lambda: None).curve == one.curve
