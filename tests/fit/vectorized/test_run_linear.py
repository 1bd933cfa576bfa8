"""Products of many runs in bfloat16: one formula, on CPUs with instructions for it and on those without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fusionkit.fit.vectorized.run_linear import _mapped, products

RUNS, ROWS, WIDTH, OUT = 3, 70, 48, 40


def learned(x: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor) -> list[Tensor]:
    """The products under autocast, and the gradients of all factors."""
    given = [each.clone().requires_grad_() for each in (x, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        found = products(*given)
    assert found.dtype == torch.bfloat16
    return [found.detach(), *torch.autograd.grad((found.float() * upstream).sum(), given)]


@pytest.mark.parametrize("shared", [True, False])
def test_a_cpu_without_bfloat16_multiplies_the_same_numbers(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, WIDTH) if shared else torch.randn(RUNS, ROWS, WIDTH)
    weight, bias, upstream = torch.randn(RUNS, OUT, WIDTH), torch.randn(RUNS, OUT), torch.randn(RUNS, ROWS, OUT)
    ways, multiplied = [], list[torch.dtype]()

    def watched(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        multiplied.append(x.dtype)
        return _mapped(x, weight, bias)

    monkeypatch.setattr("fusionkit.fit.vectorized.run_linear._mapped", watched)
    for has in (True, False):
        monkeypatch.setattr("fusionkit.fit.vectorized.run_linear.has_bfloat16", lambda has=has: has)
        ways.append(learned(x, weight, bias, upstream))
    assert multiplied == [torch.bfloat16, torch.float32]
    exact_x, exact_weight, exact_bias = (each.bfloat16().double() for each in (x, weight, bias))
    steps = upstream.bfloat16().double()
    to_x = steps @ exact_weight
    expected = [
        exact_x @ exact_weight.mT + exact_bias.unsqueeze(1),
        to_x.bfloat16().double().sum(0) if shared else to_x,
        steps.mT @ exact_x,
        steps.sum(1),
    ]
    for found, other, right in zip(*ways, expected, strict=True):
        assert found.dtype == other.dtype
        assert torch.allclose(found.double(), right, rtol=2**-7, atol=0.1)
        assert torch.allclose(other.double(), right, rtol=2**-7, atol=0.1)
