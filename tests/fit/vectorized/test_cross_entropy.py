"""The loss of many runs at once is each run's own, and needs nothing that is slow to import."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fusionkit.dataset.batch import FILLING
from fusionkit.fit.vectorized.readout import cross_entropies
from fusionkit.heads.softmax import Softmax

RUNS, ROWS, CLASSES = 3, 40, 5


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("filled", [0, 7])
def test_each_run_has_its_own_loss_and_gradient(smoothing: float, weighted: bool, shared: bool, filled: int) -> None:
    torch.manual_seed(filled)
    head = Softmax(nn.Identity()).double()
    head.label_smoothing = smoothing
    head.class_weights = torch.rand(CLASSES, dtype=torch.float64) + 0.5 if weighted else None
    scores = torch.randn(RUNS, ROWS, CLASSES, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(CLASSES, (ROWS,) if shared else (RUNS, ROWS))
    targets[..., ROWS - filled :] = FILLING
    own = [targets] * RUNS if shared else list(targets)
    expected = torch.stack([head.loss(s, t, torch.arange(ROWS)) for s, t in zip(scores, own, strict=True)])
    found = cross_entropies(head, scores, targets)
    assert torch.allclose(found, expected, atol=1e-12)
    upstream = torch.rand(RUNS, dtype=torch.float64)
    one, other = (torch.autograd.grad(losses @ upstream, scores)[0] for losses in (found, expected))
    assert torch.allclose(one, other, atol=1e-12)


def test_a_minibatch_without_rows_costs_nothing() -> None:
    scores = torch.zeros(RUNS, 0, CLASSES, requires_grad=True)
    found = cross_entropies(Softmax(nn.Identity()), scores, torch.zeros(0, dtype=torch.int64))
    assert found.tolist() == [0.0] * RUNS
    found.sum().backward()  # type: ignore[no-untyped-call]


def test_a_minibatch_whose_rows_have_no_target_costs_nothing() -> None:
    scores = torch.randn(RUNS, ROWS, CLASSES, requires_grad=True)
    found = cross_entropies(Softmax(nn.Identity()), scores, torch.full((ROWS,), FILLING))
    assert found.tolist() == [0.0] * RUNS
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert not scores.grad.any()


STEP = """
import dataclasses, sys, torch
from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.specs import RunSpec
plain = RunSpec(store="s", task="tagging", label="x", fusion="linear", head="tagger", dropout=0.1)
specs = [dataclasses.replace(plain, init_seed=seed) for seed in range(3)]
stack = Stacked(specs, [build_model(spec, 2, 8, 5) for spec in specs])
offsets = torch.arange(21)
batch = Batch(torch.randn(20, 2, 8), offsets, torch.zeros(20, dtype=torch.int64), None, offsets)
stack.step([batch], [1e-3] * 3)
stack.decide(batch)
print("sympy" in sys.modules)
"""


def test_a_step_does_not_import_sympy() -> None:
    """Half a second in each worker, where vmap takes PyTorch's loss apart."""
    told = subprocess.run([sys.executable, "-c", STEP], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["False"]
