"""The precision of a GPU's products, by torch's settings, which exist without a GPU too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch

from fusionkit.fit.model.precision import full_float32
from fusionkit.machine.devices import CPU, tf32_products

CUDA = torch.device("cuda")


CUDNN: Any = torch.backends.cudnn
KINDS = (torch.backends.cuda.matmul, CUDNN.conv, CUDNN.rnn)


def precisions() -> list[str]:
    return [kind.fp32_precision for kind in KINDS]


@pytest.fixture(params=["none", "ieee", "tf32"])
def of_the_program(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    before = precisions()
    for kind in KINDS:
        kind.fp32_precision = request.param
    yield precisions()
    for kind, precision in zip(KINDS, before, strict=True):
        kind.fp32_precision = precision


@pytest.mark.parametrize(
    ("products", "wanted"),
    [(full_float32, "ieee"), (partial(tf32_products, False), "ieee"), (partial(tf32_products, True), "tf32")],
)
def test_all_products_of_a_gpu_are_rounded_as_asked_whatever_the_program_has_set(
    products: Callable[[torch.device], AbstractContextManager[None]], wanted: str, of_the_program: list[str]
) -> None:
    with products(CPU):
        assert precisions() == of_the_program
    with products(CUDA):
        assert precisions() == [wanted] * 3
    assert precisions() == of_the_program
