"""Heads that look across the rows of an example: which rows they get, what they refuse, that they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.decisions import predict
from fusionkit.fit.train.loop import train_run
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

CorpusStore = Callable[[str], Store]
LAYERS = (5,)


def spec_of(head: str, task: str = "classification", **fields: Any) -> RunSpec:
    given = {"store": "s", "task": task, "label": "label", "fusion": "last", "head": head, "lr": 1e-3}
    return RunSpec(**{**given, **fields})


def pairs_of(split: TaskSplit, numeric: bool) -> TaskSplit:
    """A split of words as pairs of neighbouring examples, told whether their first words have the same tag."""
    count = len(split) // 2
    offsets = split.offsets[: 2 * count + 1]
    first = split.targets[offsets[:-1]].reshape(count, 2)
    same = first[:, 0] == first[:, 1]
    return TaskSplit(
        split.states,
        split.rows[: offsets[-1]],
        offsets,
        same.astype(np.float32 if numeric else np.int64),
        same.astype(float).tolist() if numeric else np.where(same, "same", "other").tolist(),
        split.ids[:count],
        sides=2,
    )


@pytest.fixture
def pairs(toy: Callable[..., TaskData]) -> Callable[..., TaskData]:
    """Pairs of sequences, each two to a pair as a store of pairs has them."""

    def make(numeric: bool = False) -> TaskData:
        data = toy(words=True, examples=80)
        assert data.test is not None
        splits = [pairs_of(split, numeric) for split in (data.train, data.validation, data.test)]
        task = TASKS["regression" if numeric else "pair-classification"]
        labels = [] if numeric else ["other", "same"]
        return TaskData(task, "label", None, labels, len(labels) or 1, "same", splits[0], splits[1], splits[2])

    return make


@pytest.mark.parametrize("rows", ["tokens", "words", "words-mean"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_head_that_reads_sequences_gets_every_row_with_a_state(
    rows: str, whole: bool, corpus_store: CorpusStore
) -> None:
    store = corpus_store(rows)
    data = load_task(store, *choose_task(store, "classification", None), None, whole, unpooled=True)
    for name in ("train", "validation", "test"):
        split: TaskSplit = getattr(data, name)
        batch = split.batch(np.arange(len(split)), LAYERS)
        taken = [store[name].take([int(number.rpartition("-")[2])], LAYERS) for number in split.ids]
        stated = [one.hidden_states.float()[torch.from_numpy(one.row_mask)] for one in taken]
        assert torch.equal(batch.states, torch.cat(stated))
        assert batch.offsets.tolist() == np.cumsum([0, *map(len, stated)]).tolist()
        assert batch.read is None
        assert len(batch.targets) == len(split) > 1


@pytest.mark.parametrize(("rows", "fusion"), [("tokens", "linear"), ("words", "last"), ("words", "extra-layers:1")])
def test_each_example_is_decided_from_its_own_rows(
    rows: str, fusion: str, corpus_store: CorpusStore, tmp_path: Path, watch: Any
) -> None:
    store = corpus_store(rows)
    [spec] = expand(store, task="classification", head="bcn", fusions=(fusion,), epochs=(1,))
    assert spec.pool is None
    [record] = fit(store, [spec], RunsFolder(tmp_path / "runs"), watch)
    assert record["status"] == "finished"
    assert record["head_parameters"] == 300 * 384 + 9_732_300 + 301 * 2
    data = load_task(store, *choose_task(store, "classification", None), None, unpooled=True)
    positions = tuple(record["layers"])
    model = build_model(spec, len(positions), 384, 2).eval()
    together = predict(model, data, data.train, positions)
    alone = [predict(model, data, data.train.subset(np.array([i])), positions)[0] for i in range(len(data.train))]
    assert together == alone
    assert len(together) == 7


def test_a_bilstm_crf_tags_the_words_that_have_a_row(corpus_store: CorpusStore, tmp_path: Path, watch: Any) -> None:
    store = corpus_store("tokens")
    [spec] = expand(store, task="tagging", head="bilstm-crf", fusions=("linear",), epochs=(1,), dropout=0.5)
    first, again = (fit(store, [spec], RunsFolder(tmp_path / name), watch)[0] for name in "ab")
    assert first["status"] == "finished"
    assert first["curve"] == again["curve"]
    assert first["head_parameters"] == 1600 * 384 + 1_286_400 + len(first["labels"]) ** 2 + 403 * len(first["labels"])


REFUSED = [
    ("words", {"pool": "mean"}, "rows of words and --pool mean", "leave --pool out"),
    ("tokens", {"pool": "cls"}, "rows of tokens and --pool cls", "leave --pool out"),
    ("cls", {}, "rows of cls", "encode again with --rows tokens"),
    ("mean", {"pool": "mean"}, "rows of mean and --pool mean", "encode again with --rows tokens"),
]


@pytest.mark.parametrize(("rows", "choice", "received", "remedy"), REFUSED)
def test_pooling_and_pooled_rows_are_refused_with_the_reason(
    rows: str, choice: dict[str, str], received: str, remedy: str, corpus_store: CorpusStore
) -> None:
    with pytest.raises(UsageError, match="head 'bcn' reads every row of an example and pools them itself") as caught:
        expand(corpus_store(rows), task="classification", head="bcn", fusions=("last",), **choice)  # type: ignore[arg-type]
    assert caught.value.received == received
    assert remedy in (caught.value.remedy or "")


def test_a_spec_that_pools_before_such_a_head_is_refused() -> None:
    with pytest.raises(UsageError, match="head 'bcn' pools by itself") as caught:
        build_model(spec_of("bcn", pool="mean"), 1, 6, 2)
    assert caught.value.received == "pool 'mean'"


def test_one_sequence_for_a_head_that_compares_two_is_refused_before_any_run(
    corpus_store: CorpusStore, tmp_path: Path, watch: Any
) -> None:
    store = corpus_store("words")
    [sound] = expand(store, task="classification", fusions=("last",), epochs=(1,))
    alone = replace(sound, head="esim", pool=None)
    with pytest.raises(UsageError, match="head 'esim' compares two sequences") as caught:
        fit(store, [sound, alone], RunsFolder(tmp_path / "runs"), watch)
    assert "--pair-as two" in (caught.value.remedy or "")
    assert watch.ended == []


def test_two_sequences_are_refused_for_a_head_that_reads_one(pairs: Callable[..., TaskData]) -> None:
    with pytest.raises(UsageError, match="head 'bcn' reads one sequence an example") as caught:
        train_run(spec_of("bcn"), pairs(), (1,), 6, lambda: None)
    assert "--pair-as one" in (caught.value.remedy or "")


def test_esim_reads_both_sequences_of_a_pair_as_they_are(pairs: Callable[..., TaskData]) -> None:
    train = pairs().train
    batch = train.batch(np.array([3, 1]), (0, 1, 2))
    model = build_model(spec_of("esim", fusion="linear"), 3, 6, 2, sides=2).eval()
    fused = batch.states.mean(1)  # what a linear fusion starts as
    expected = []
    for k in (3, 1):
        bounds = list(pairwise(train.offsets[2 * k : 2 * k + 3].tolist()))
        lengths = [b - a for a, b in bounds]
        start = 0 if k == 3 else int(batch.offsets[2])
        own = fused[start : start + sum(lengths)]
        expected.append(model.head(own, torch.tensor([0, lengths[0], sum(lengths)])))
    found = model(batch.states, batch.offsets, batch.read)
    assert found.shape == (2, 2)
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.soak("products")
def test_esim_learns_what_only_both_sequences_together_tell(pairs: Callable[..., TaskData]) -> None:
    data, spec = pairs(), spec_of("esim", "pair-classification", epochs=12)
    assert {name: data.train.gold.count(name) for name in data.labels}.keys() == {"other", "same"}
    outcome = train_run(spec, data, (1,), 6, lambda: None)
    losses = [epoch["loss"] for epoch in outcome.curve]
    assert losses[-1] < 0.45 < 0.65 < losses[0]  # one sequence alone tells nothing: 0.69
    assert outcome.head_parameters == 2400 * 6 + 3_610_200 + 301 * 2
    one = replace(spec, epochs=1)
    curves = [
        train_run(replace(one, **option), data, (1,), 6, lambda: None).curve[0]["loss"]
        for option in ({}, {}, {"label_smoothing": 0.2}, {"class_weights": "balanced"}, {"dropout": 0.5})
    ]
    assert curves[0] == curves[1] == train_run(one, data, (1,), 6, lambda: None).curve[0]["loss"]
    assert len(set(curves)) == 4


def test_esim_gives_a_number_where_the_task_is_one(pairs: Callable[..., TaskData]) -> None:
    data = pairs(numeric=True)
    outcome = train_run(spec_of("esim-regressor", "regression", epochs=8), data, (1,), 6, lambda: None)
    assert outcome.metric == "pearson"
    assert outcome.curve[-1]["loss"] < outcome.curve[0]["loss"]
    model = build_model(spec_of("esim-regressor", "regression"), 1, 6, 0, sides=2)
    model.load_state_dict(outcome.weights)
    numbers = predict(model, data, data.validation, (1,))
    assert len(numbers) == 50
    assert all(isinstance(number, float) for number in numbers)
