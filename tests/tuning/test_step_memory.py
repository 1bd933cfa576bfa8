"""The memory of a training step through the encoder, against a count by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusionkit.machine.devices import CPU
from fusionkit.methods.attached import Attached
from fusionkit.ragged import IntArray
from fusionkit.specs import RunSpec
from fusionkit.tuning.costs import costs_of


class Product(nn.Module):
    """``loss = Σ x V W`` of float32, V: 4 → 8, W: 8 → 2."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.w = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.ones(8, 2))

    def loss(self, x: Tensor) -> Tensor:
        return (x @ self.v @ self.w).sum()


class Draw:
    """Six examples of one row each, which are made when they are asked for."""

    offsets, sides = np.arange(7), 1

    def __len__(self) -> int:
        return 6

    def batch(self, examples: IntArray, layers: object) -> Any:
        return SimpleNamespace(on=lambda device: torch.ones(len(examples), 4))


def test_the_gates_penalty_of_a_method_is_counted() -> None:
    spec = RunSpec(store="s", task="tagging", label="tags", fusion="last", head="tagger", batch_size=6)
    model: Any = Product()
    run: Any = SimpleNamespace(spec=spec, layers=(0,), draw=SimpleNamespace(streams=[Draw()]))
    optimizer: Any = SimpleNamespace(weights=list(model.parameters()))
    penalised = replace(Attached.of_nothing(), penalty=lambda: torch.sigmoid(model.v).sum())
    without, found = (costs_of(attached, model, run, optimizer, CPU) for attached in (Attached.of_nothing(), penalised))
    # The sigmoid of V is kept for the backward pass.
    assert found["memory_activations"] >= without["memory_activations"] + 4 * 4 * 8


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_parts_and_the_peak_are_those_counted_by_hand(pieces: int) -> None:
    """The most other tensors are there once the gradients of x V and W are computed, before W has its own."""
    spec = RunSpec(
        store="s", task="tagging", label="tags", fusion="last", head="tagger", batch_size=6, accumulate=pieces
    )
    model: Any = Product()
    run: Any = SimpleNamespace(spec=spec, layers=(0,), draw=SimpleNamespace(streams=[Draw()]))
    optimizer: Any = SimpleNamespace(weights=list(model.parameters()))
    found = costs_of(Attached.of_nothing(), model, run, optimizer, CPU)
    rows, weights = 6 // pieces, 4 * (4 * 8 + 8 * 2)
    # x, x V and its gradient; the loss and its gradient; the gradient of W.
    activations = 4 * (rows * (4 + 8 + 8) + 1 + 1 + 8 * 2)
    assert {name: size for name, size in found.items() if name.startswith("memory_")} == {
        "memory_weights": weights,
        "memory_gradients": weights,
        "memory_optimizer": 2 * weights,
        "memory_activations": activations,
    }
    held = weights if pieces > 1 else 0  # the second piece finds the gradients of the first
    assert found["peak_memory_alone"] == 3 * weights + held + activations
    assert all(each.grad is None for each in optimizer.weights)
