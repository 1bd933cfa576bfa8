"""Counting operations and bytes, held against formulas written by hand and against PyTorch's own counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fusionkit.fit.train.meter import PRODUCTS, Meter
from fusionkit.fusions import build_fusion
from fusionkit.heads import build_head

ROWS, LAYERS, HIDDEN = 6, 7, 16


def counted(module: Any, *given: Tensor) -> tuple[int, int]:
    """Operations forward, and backward."""
    with Meter() as meter:
        out = module(*given)
        forward = meter.flops
        torch.autograd.grad(out, list(module.parameters()), torch.ones_like(out))
    return forward, meter.flops - forward


def test_products_are_those_of_torchs_own_counter() -> None:
    module = nn.Sequential(nn.Linear(HIDDEN, 32), nn.Linear(32, 5))
    states = torch.randn(ROWS, HIDDEN)
    with FlopCounterMode(display=False) as theirs:
        module(states).sum().backward()
    forward, backward = counted(module, states)
    assert forward == 2 * ROWS * (HIDDEN * 32 + 32 * 5)
    biases = ROWS * (32 + 5)  # their gradients are sums, of which torch's counter knows nothing
    assert forward + backward == theirs.get_total_flops() + biases


def test_a_scalar_mix_is_counted_by_the_number() -> None:
    """Each number of the fused state is LAYERS products and LAYERS - 1 sums; einsum counts a product as both."""
    states = torch.randn(ROWS, LAYERS, HIDDEN)
    forward, _ = counted(build_fusion("element-wise", LAYERS, HIDDEN), states)
    numbers = ROWS * LAYERS * HIDDEN
    assert forward == LAYERS * HIDDEN + numbers + numbers  # the softmax, the products, the sums
    linear, _ = counted(build_fusion("linear", LAYERS, HIDDEN), states)
    assert 2 * numbers <= linear <= 2 * numbers + 2 * LAYERS + ROWS * HIDDEN


def test_the_last_layer_costs_nothing() -> None:
    with Meter() as meter:
        build_fusion("last", 1, HIDDEN)(torch.randn(ROWS, 1, HIDDEN), torch.tensor([0, ROWS]))
    assert meter.flops == 0


def test_an_lstm_and_attention_on_a_cpu_are_counted() -> None:
    states = torch.randn(2, 5, HIDDEN)
    lstm = nn.LSTM(HIDDEN, 8, bidirectional=True, batch_first=True)
    with Meter() as meter:
        lstm(states)
    products = 2 * 2 * 10 * (HIDDEN * 32 + 8 * 32)  # two directions, ten rows
    assert products <= meter.flops <= 1.1 * products
    query = torch.randn(1, 2, 9, 8)
    with Meter() as meter:
        nn.functional.scaled_dot_product_attention(query, query, query)
    assert meter.flops == 2 * (2 * 2 * 9 * 9 * 8)  # two heads; scores, and their mix of values


def test_an_lstm_on_a_gpu_is_counted_by_all_its_matrices() -> None:
    """cuDNN computes both layers and directions in one operation."""
    lstm = nn.LSTM(HIDDEN, 8, num_layers=2, bidirectional=True)
    given: tuple[Any, ...] = torch.empty(2, 5, HIDDEN), list(lstm.parameters()), 4
    products = 2 * 10 * 2 * (HIDDEN * 32 + 8 * 32 + 2 * 8 * 32 + 8 * 32)  # ten rows, two directions
    assert PRODUCTS[torch.ops.aten._cudnn_rnn](*given) == products
    assert PRODUCTS[torch.ops.aten._cudnn_rnn_backward](*given) == 2 * products


@pytest.mark.parametrize("head", ["linear-tagger", "crf", "bilstm-crf"])
def test_a_head_costs_at_least_its_products(head: str) -> None:
    module = build_head(head, HIDDEN, 4, 0.0)
    offsets = torch.tensor([0, 4, ROWS])
    with Meter() as meter:
        module.loss(module(torch.randn(ROWS, HIDDEN), offsets), torch.tensor([0, 1, 2, 3, 0, 1]), offsets)
    matrices = sum(weights.numel() for weights in module.parameters() if weights.dim() == 2 and len(weights) > 4)
    assert meter.flops >= 2 * ROWS * matrices


def test_bytes_are_those_alive_at_once() -> None:
    size = 4 * 1000
    states = torch.randn(1000)  # made before: not counted
    with Meter() as meter:
        doubled = states * 2
        moved = doubled + 1
        assert meter.peak_bytes == 2 * size
        del doubled
        part = moved.exp()[:10]  # a view keeps all of it
        assert meter.peak_bytes == 2 * size
        del moved
        last = states * 3
        assert meter.peak_bytes == 2 * size
        more = last * part.sum()
    assert meter.peak_bytes == 3 * size + 4
    del more


def test_a_view_of_what_was_there_before_is_not_counted() -> None:
    """A linear map reads a view of its weights, and a result in place has the memory of its argument."""
    module, states = nn.Linear(1000, 1), torch.randn(2, 1000)
    with Meter() as meter:
        scores = module(states)
        states.mul_(states)
    assert meter.peak_bytes == scores.nbytes
    with Meter() as meter:
        torch.tensor([0.0] * 1000)
    assert meter.peak_bytes == 4 * 1000


def test_what_autograd_keeps_is_held() -> None:
    weights = torch.ones(1000, requires_grad=True)
    with Meter() as meter:
        torch.autograd.grad(weights.exp().exp().exp().sum(), weights)  # each exp keeps its result
    assert meter.peak_bytes >= 4 * 3000
