"""Pairs stored as two sequences under a task: which rows stand for which text, against the store's own arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionkit.dataset.infer_task import choose_task
from fusionkit.dataset.labels import load_task
from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.share import Share
from fusionkit.dataset.split import TaskSplit
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.fit import RunGroups, RunsFolder, expand, fit, summarise
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.sweep.fusion_choices import choose_pool
from fusionkit.fit.train.decisions import predict
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, open_store

Array = NDArray[Any]
TEXTS = ["rain in Oslo", "snow over Bergen", "soup", "Anna bakes the smallest unquestionable fish of all", "rain"]
# First text, second text, label, score; texts come again, one beside itself, and one pair has no label.
TRAIN = [(0, 1, "no", 1.5), (2, 2, "yes", 5.0), (1, 0, "no", 1.0), (3, 4, None, 0.25), (4, 0, "yes", 4.0)] * 4
TEST = [(1, 3, "no", 0.5), (3, 3, "yes", 4.5)]
KINDS = [("tokens", "cls"), ("tokens", "mean"), ("tokens", "max"), ("tokens", "last"), ("cls", None), ("mean", None)]


@pytest.fixture(scope="module")
def stores(make_store: Callable[..., Store]) -> Callable[[str], Store]:
    """The pairs under one kind of rows; MiniLM, an encoder of sentences, takes them as two."""
    made: dict[str, Store] = {}

    def rows_of(pairs: list[Any]) -> list[dict[str, Any]]:
        return [
            {"id": f"n{k}", "sentence1": TEXTS[one], "sentence2": TEXTS[other], "label": label, "score": score}
            for k, (one, other, label, score) in enumerate(pairs)
        ]

    def get(rows: str) -> Store:
        if rows not in made:
            made[rows] = make_store(rows, train=rows_of(TRAIN), test=rows_of(TEST))
        return made[rows]

    return get


def states_of(store: Store, split: str, text: str, states: Array, pool: str | None) -> Array:
    """The rows ``[n, layers, hidden]`` that a head reads of one text, found by where the text comes first."""
    frame = store[split].examples
    seen = list(dict.fromkeys(t for both in zip(frame["sentence1"], frame["sentence2"], strict=True) for t in both))
    start, stop = store[split].row_offsets[seen.index(text) :][:2]
    return (
        states[start : start + 1]
        if pool == "cls"
        else states[stop - 1 : stop]
        if pool == "last"
        else states[start:stop]
    )


def assert_rows(found: TaskSplit, expected: list[tuple[Array, Array]]) -> None:
    """Each example has these two sequences of rows, one behind the other."""
    assert (found.sides, len(found), len(found.offsets)) == (2, len(expected), 2 * len(expected) + 1)
    batch = found.batch(np.arange(len(found)), tuple(range(7)))
    for k, side in np.ndindex(len(expected), 2):
        start, stop = batch.offsets[2 * k + side :][:2].tolist()
        np.testing.assert_array_equal(batch.states[start:stop].numpy(), expected[k][side])


@pytest.mark.parametrize(("rows", "pool"), KINDS)
def test_each_example_has_the_rows_of_its_two_texts(
    stores: Callable[[str], Store], stored: Callable[[Store, str], Array], rows: str, pool: str | None
) -> None:
    store = stores(rows)
    task, label = choose_task(store, None, "label")
    assert task.name == "pair-classification"
    data = load_task(store, task, label, choose_pool(store, task, pool))
    present = [pair for pair in TRAIN if pair[2] is not None]
    states = {split: stored(store, split) for split in store.splits}

    def expected(split: str, pairs: list[Any]) -> list[tuple[Array, Array]]:
        one, other = (
            [states_of(store, split, TEXTS[pair[side]], states[split], pool) for pair in pairs] for side in (0, 1)
        )
        return list(zip(one, other, strict=True))

    assert data.test is not None
    assert_rows(data.test, expected("test", TEST))
    # Two of the sixteen with a label are set aside for validation; ids tell which.
    whole = expected("train", TRAIN)
    for part in (data.train, data.validation):
        numbers = [int(name.removeprefix("n")) for name in part.ids]
        assert_rows(part, [whole[number] for number in numbers])
        assert part.gold == [TRAIN[number][2] for number in numbers]
    assert (len(present), len(data.train), len(data.validation)) == (16, 14, 2)
    assert_rows(data.train.subset(np.array([9, 2])), [whole[int(data.train.ids[k][1:])] for k in (9, 2)])


@pytest.mark.parametrize(
    ("rows", "pool", "fusion"),
    [(*kind, "layer:3") for kind in KINDS] + [("tokens", pool, "extra-layers:1") for pool in ("cls", "mean", "max")],
)
def test_the_head_reads_both_their_difference_and_their_product(
    stores: Callable[[str], Store], rows: str, pool: str | None, fusion: str
) -> None:
    """A run's scores, from ``take`` and the formula written out."""
    store = stores(rows)
    data = load_task(store, *choose_task(store, None, "score"), pool, fusion.startswith("extra"))
    spec = RunSpec(store=store.digest, task="regression", label="score", fusion=fusion, head="regressor", pool=pool)
    layers = (3,) if fusion == "layer:3" else tuple(range(7))
    model = build_model(spec, len(layers), 384, 0, data.train.sides).eval()
    assert data.test is not None
    taken = store["test"].take([0, 1], layers=layers)
    with torch.inference_mode():
        pooled = []
        for sequence in range(4):
            states = taken[sequence].float()
            fused = model.fusion(states, torch.tensor([0, len(states)]))
            one = 0 if pool == "cls" or len(fused) == 1 else -1 if pool == "last" else None
            first = fused.mean(0) if one is None else fused[one]
            pooled.append(fused.max(0).values if pool == "max" else first)
        u, v = torch.stack(pooled[::2]), torch.stack(pooled[1::2])
        scores = model.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1), torch.arange(3))
        expected = model.head.decode(scores, torch.arange(3)).tolist()
    np.testing.assert_allclose(predict(model, data, data.test, layers), expected, rtol=1e-4, atol=1e-5)


def test_runs_over_both_forms_are_told_apart(
    stores: Callable[[str], Store], minilm: Encoder, watch: Any, tmp_path: Path
) -> None:
    two = stores("mean")
    folder = Path(str(two.path)).parent
    source = open_source(str(folder))
    encode(source, guess_columns(source), tmp_path / "one", EncodeSpec(rows="mean", pair_as="one"), minilm)
    runs, one = RunsFolder(tmp_path / "runs"), open_store(tmp_path / "one")
    for store in (one, two):
        specs = expand(store, label="label", fusions=["last"], shots=[None, 3], epochs=[2])
        records = fit(store, specs, runs, watch)
        assert [record["status"] for record in records] == ["finished"] * 2
        assert {record["sides"] for record in records} == {store.sides}
        assert {record["encoding"]["pair_as"] for record in records} == {"one" if store is one else "two"}
        drawn = records[1]["draw"]
        assert len(set(drawn)) == 6
        assert all(TRAIN[int(name[1:])][2] is not None for name in drawn)
    frame = runs.frame()
    assert sorted(frame["sides"]) == [1, 1, 2, 2]
    summary = summarise(RunGroups(frame))
    assert sorted(summary["sides"]) == [1, 1, 2, 2]
    assert "store" not in summary.columns
    width = {row["sides"]: row["parameters"] for row in summary.to_dict(orient="records")}
    assert width[2] - width[1] == 3 * 384 * 256  # the first layer of the head reads four vectors
    with pytest.raises(UsageError, match="one head cannot read these stores") as caught:
        Mix([Share(two)], [two, one])  # not even to score its test split
    _, _, field, _ = str(caught.value).splitlines()
    assert field.split() == ["pairs", "as", "two", "one"]
