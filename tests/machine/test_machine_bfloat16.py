"""Products in bfloat16 on a CPU without instructions for them: the same numbers, multiplied in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence

from fusionkit.machine.bfloat16 import in_float32
from fusionkit.machine.devices import CPU
from tests.machine.multiplied import Multiplied

ROWS, LENGTH, WIDTH = 6, 5, 16


@pytest.fixture(autouse=True)
def without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionkit.machine.bfloat16.has_bfloat16", lambda: False)


@pytest.fixture
def watched() -> Iterator[Multiplied]:
    with Multiplied() as mode:
        yield mode


def attention(x: Tensor) -> Tensor:
    mask = torch.ones(ROWS, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    heads = x.view(ROWS, LENGTH, 2, 8).transpose(1, 2)
    return scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


class Recurrent(nn.Module):
    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed, self.lstm = packed, nn.LSTM(WIDTH, 8, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        given: Any = pack_padded_sequence(x, [5, 5, 4, 3, 2, 1], batch_first=True) if self.packed else x
        found = self.lstm(given)[0]
        return found.data if self.packed else found  # type: ignore[no-any-return]


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class Convolution(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2))


MODULES: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "linear map": lambda: nn.Linear(WIDTH, 8),
    "linear map without a bias": lambda: nn.Linear(WIDTH, 8, bias=False),
    "batched product": lambda: lambda x: x @ x.mT,
    "attention": lambda: attention,
    "multi-head attention": lambda: SelfAttention(WIDTH, 2, batch_first=True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0, batch_first=True),
    "convolution": lambda: Convolution(WIDTH, 8, 3),
    "LSTM": lambda: Recurrent(packed=False),
    "LSTM over packed rows": lambda: Recurrent(packed=True),
}


def upstream(found: Tensor) -> Tensor:
    return torch.linspace(-1, 1, found.numel()).view_as(found)


def learned(module: Callable[[Tensor], Tensor], x: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of the input."""
    x = x.clone().requires_grad_()
    with in_float32(dtype, CPU):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            found = module(x)
        (gradient,) = torch.autograd.grad((found.float() * upstream(found)).sum(), x)
    return found.detach(), gradient


@pytest.mark.parametrize("name", MODULES)
def test_numbers_are_rounded_and_multiplied_in_float32(name: str, watched: Multiplied) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(ROWS, LENGTH, WIDTH)
    exact = learned(module, x, "float32")
    rough = learned(module, x, "bfloat16")
    assert watched.types == {torch.float32}
    for right, found in zip(exact, rough, strict=True):
        error = float((found.float() - right).norm() / right.norm())
        assert 1e-4 < error < 0.02  # eight significant bits: 2**-9 is the largest error of one number


def test_a_product_is_that_of_the_rounded_factors() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(ROWS, WIDTH).bfloat16(), torch.randn(8, WIDTH).bfloat16()
    with in_float32("bfloat16", CPU):
        found = x @ weight.mT
    assert torch.equal(found, (x.double() @ weight.double().mT).bfloat16())


@pytest.mark.parametrize("name", [name for name in MODULES if "LSTM" not in name])
def test_without_autograd_a_whole_module_is_taken_apart(name: str, watched: Multiplied) -> None:
    module, x = MODULES[name](), torch.randn(ROWS, LENGTH, WIDTH)
    if isinstance(module, nn.Module):
        module.eval().bfloat16()
    with torch.inference_mode(), in_float32("bfloat16", CPU):
        assert module(x.bfloat16()).dtype == torch.bfloat16
    assert watched.types == {torch.float32}


@pytest.mark.parametrize(
    ("dtype", "device", "has"), [("float32", "cpu", False), ("bfloat16", "cuda", False), ("bfloat16", "cpu", True)]
)
def test_elsewhere_nothing_is_done(dtype: str, device: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionkit.machine.bfloat16.has_bfloat16", lambda: has)
    x = torch.randn(ROWS, WIDTH).bfloat16()
    with Multiplied() as watched, in_float32(dtype, torch.device(device)):
        x @ x.mT
    assert watched.types == {torch.bfloat16}


def test_a_meter_inside_sees_bfloat16() -> None:
    x = torch.randn(ROWS, WIDTH).bfloat16()
    with Multiplied() as outer, in_float32("bfloat16", CPU), Multiplied() as inner, in_float32("bfloat16", CPU):
        x @ x.mT
    assert (outer.types, inner.types) == ({torch.float32}, {torch.bfloat16})
