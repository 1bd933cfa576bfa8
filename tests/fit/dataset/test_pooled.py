"""Means taken as rows are read: the same scores for fusions that are affine maps, over one row a sequence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.labels import load_task
from fusionkit.dataset.pooled import pooled, pooled_data
from fusionkit.fit import expand
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.executor.units import data_key, pools_first
from fusionkit.fit.train.result import RunResult
from fusionkit.fusions import FUSIONS, fusion_class, is_affine, named
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tasks import TASKS

AFFINE = ["last", "layer:1", "linear", "element-wise", "concat", "concat-affine"]
VARIANTS = ["element-wise:softmax=no", "concat:first=yes"]


def spec_of(store: Store, fusion: str, **fields: Any) -> RunSpec:
    given: dict[str, Any] = {"pool": "mean", "epochs": (3,), "batch_sizes": (4,), **fields}
    [spec] = expand(store, task="classification", label="label", fusions=(fusion,), **given)
    return spec


def trained(context: SweepContext, spec: RunSpec, data: Any = None) -> RunResult:
    [(_, result)] = context.train([spec], lambda _: None, data)
    assert isinstance(result, RunResult)
    return result


def test_these_fusions_are_affine_maps() -> None:
    built = [re.sub(":[a-z]+$", ":1", named(name, fusion_class(name))) for name in FUSIONS]
    assert [name for name in built if is_affine(name)] == ["last", "layer:1", *AFFINE[2:3], *AFFINE[4:], "element-wise"]
    assert not is_affine("linear:norm=token")
    assert all(map(is_affine, ["linear:gamma=no", *VARIANTS]))
    assert not is_affine("mlp-weights:softmax=no")


@pytest.mark.parametrize("fusion", AFFINE + VARIANTS)
def test_a_run_learns_over_means_what_it_learns_over_rows(fusion: str, corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("tokens")
    spec, context = spec_of(store, fusion), SweepContext(store)
    rows = load_task(store, TASKS["classification"], "label", "mean")
    means = context.data(spec)
    assert len(means.train.rows) == len(means.train) < len(rows.train.rows)
    over_means, over_rows = trained(context, spec), trained(context, spec, rows)
    assert over_means.scores["test"] == pytest.approx(over_rows.scores["test"])
    for name, weights in over_rows.weights.items():
        torch.testing.assert_close(over_means.weights[name], weights, rtol=1e-3, atol=2e-4)
    losses = [[point["loss"] for point in run.curve] for run in (over_means, over_rows)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_other_runs_read_all_rows(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("tokens")
    plain = spec_of(store, "linear")
    others = [
        spec_of(store, "attention"), spec_of(store, "linear:norm=token"), spec_of(store, "linear", pool="cls"),
        spec_of(store, "linear", pool="max"), replace(plain, head="bcn"),
    ]  # fmt: skip
    assert pools_first(plain)
    assert not any(map(pools_first, others))
    assert all(data_key(plain) != data_key(other) for other in others)
    words = expand(store, task="joint", fusions=("linear",))
    assert not pools_first(words[0])


def test_an_example_without_rows_stays_without(corpus_store: Callable[[str], Store]) -> None:
    """Its mean is 0, to which `concat` would add its bias."""
    data = load_task(corpus_store("tokens"), TASKS["classification"], "label", "mean")
    offsets = data.train.offsets.copy()
    offsets[2:] -= offsets[2] - offsets[1]  # the second example loses its rows
    kept = np.delete(data.train.rows, slice(*data.train.offsets[1:3]))
    train = replace(data.train, offsets=offsets, rows=kept)
    means = pooled(train)
    assert np.diff(means.offsets)[:3].tolist() == [1, 0, 1]
    batch, whole = means.batch(np.arange(3), (0, 1)), train.batch(np.arange(3), (0, 1))
    assert batch.offsets.tolist() == [0, 1, 1, 2]
    first, third = whole.states[: offsets[1]], whole.states[offsets[2] : offsets[3]]
    torch.testing.assert_close(batch.states, torch.stack([first.mean(0), third.mean(0)]))


def test_rows_that_are_means_already_stay_as_they_are(corpus_store: Callable[[str], Store]) -> None:
    data = load_task(corpus_store("mean"), TASKS["classification"], "label", None)
    assert pooled_data(data) is data


def test_means_are_streamed_too(corpus_store: Callable[[str], Store]) -> None:
    store = corpus_store("tokens")
    means = pooled_data(load_task(store, TASKS["classification"], "label", "mean")).train
    states: Any = means.states
    chunks = states.chunk_of(means.rows)
    assert (np.diff(chunks) >= 0).all()
    some = np.arange(2, 6)
    held = states.load(some, (0, 2))
    torch.testing.assert_close(held.gather(some, (0, 2)), states.gather(some, (0, 2)))
