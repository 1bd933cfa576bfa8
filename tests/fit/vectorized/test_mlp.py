"""Chains of linear layers for many runs at once: every way of multiplying gives each run's own scores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fusionkit.fit.vectorized.readout import LARGE, MANY_ROWS, chain_of, chained

RUNS, WIDTH, CLASSES = 3, 128, 5


def heads() -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, CLASSES)) for _ in range(RUNS)]


@pytest.mark.parametrize("count", [7, MANY_ROWS + 44])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_each_run_scores_as_its_own_head_does(count: int, shared: bool, learns: bool) -> None:
    own = heads()
    assert own[0].state_dict()["0.weight"].numel() >= LARGE  # so that many rows go one run after another
    steps = chain_of(own[0])
    assert steps is not None
    weights = {name: torch.stack([head.state_dict()[name] for head in own]) for name in own[0].state_dict()}
    rows = torch.randn(count, WIDTH) if shared else torch.randn(RUNS, count, WIDTH)
    before = rows.clone()
    with torch.set_grad_enabled(learns):
        found = chained(steps, weights, rows)
        expected = torch.stack([head(rows if shared else rows[run]) for run, head in enumerate(own)])
    assert found.shape == (RUNS, count, CLASSES)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(rows, before)  # ReLU in place touches what is the chain's own alone


def test_other_modules_are_no_chain() -> None:
    assert chain_of(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) is None
    assert chain_of(nn.Linear(4, 4, bias=False)) is None
    assert chain_of(nn.ReLU()) is None
