"""Fusion, pool and head as one: the order they act in, and what their weights depend on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fusionkit.fit.model.fused import build_model, parameters_of
from fusionkit.specs import POOLS, RunSpec

OFFSETS = torch.tensor([0, 3, 3, 4, 9])  # the second example has no rows
REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rows: rows.sum(0) / max(len(rows), 1),
    "max": lambda rows: rows.amax(0) if len(rows) else torch.zeros(rows.shape[1]),
}


def spec(**fields: Any) -> RunSpec:
    given = {"store": "s", "task": "classification", "label": "label", "fusion": "attention", "head": "classifier"}
    return RunSpec(**{**given, **fields})


@pytest.mark.parametrize("pool", sorted(REDUCE))
def test_tokens_are_fused_first_and_pooled_after(pool: str) -> None:
    model = build_model(spec(pool=pool), 3, 5, 2).eval()
    states = torch.randn(9, 3, 5, generator=torch.Generator().manual_seed(1))
    query = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0])
    with torch.no_grad():
        next(model.fusion.parameters()).copy_(query)  # a weight of its own for each token, or the order does not show
        bounds = OFFSETS.tolist()
        weights = torch.softmax((states * query).sum(2), 1)
        fused = (weights.unsqueeze(2) * states).sum(1)
        pooled = [REDUCE[pool](fused[a:b]) for a, b in pairwise(bounds)]
        expected = model.head(torch.stack(pooled), OFFSETS)
        found = model(states, OFFSETS)
    assert found.shape == (4, 2)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("pool", [None, "cls", "last"])
def test_without_a_reduction_each_row_is_scored(pool: str | None) -> None:
    model = build_model(spec(pool=pool), 3, 5, 2)
    states = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(2))
    mean = states.mean(1)  # what a query of zeros makes of the layers
    assert torch.allclose(model(states, torch.arange(5)), model.head(mean, torch.arange(5)), atol=1e-6)
    assert set(POOLS) == {"cls", "last", *REDUCE}


def test_weights_depend_on_the_init_seed_alone() -> None:
    first = build_model(spec(fusion="concat", init_seed=4), 3, 5, 2).state_dict()
    torch.manual_seed(99)
    again = build_model(spec(fusion="concat", init_seed=4, data_seed=7, lr=1.0, shots=3), 3, 5, 2).state_dict()
    other = build_model(spec(fusion="concat", init_seed=5), 3, 5, 2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert len(first) == 8


def test_building_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_model(spec(), 3, 5, 2)
    assert torch.equal(torch.rand(4), expected)


def test_building_seeds_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.manual_seed`` seeds every GPU too, and nothing would put those back."""
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("all generators are seeded"))
    build_model(spec(), 3, 5, 2)


def test_parameters_are_counted_part_by_part() -> None:
    model = build_model(spec(fusion="linear"), 3, 5, 4)
    assert parameters_of(model.fusion) == 3 + 1
    assert parameters_of(model.head) == (5 * 256 + 256) + (256 * 256 + 256) + (256 * 4 + 4)


@pytest.mark.parametrize("pool", [None, "mean"])
def test_two_sequences_an_example_are_read_side_by_side(pool: str | None) -> None:
    lengths = [1, 1, 1, 1] if pool is None else [2, 3, 1, 3]
    offsets = torch.tensor([0, *accumulate(lengths)])
    model = build_model(spec(fusion="last", pool=pool), 1, 5, 3, sides=2)
    states = torch.randn(sum(lengths), 1, 5, generator=torch.Generator().manual_seed(3))
    first, second, third, fourth = (states[a:b, 0].mean(0) for a, b in pairwise(offsets.tolist()))
    pairs = [torch.cat([u, v, (u - v).abs(), u * v]) for u, v in ((first, second), (third, fourth))]
    expected = model.head(torch.stack(pairs), torch.arange(3))
    assert expected.shape == (2, 3)
    assert torch.allclose(model(states, offsets), expected, atol=1e-6)
