"""The precision of a GPU's products, by torch's settings, which exist without a GPU too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
import torch

from fusionkit.fit.model.precision import full_float32
from fusionkit.machine.devices import CPU, tf32_products

CUDA = torch.device("cuda")


def allowed() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(
    ("products", "rounds"),
    [(full_float32, False), (partial(tf32_products, False), False), (partial(tf32_products, True), True)],
)
def test_all_products_of_a_gpu_are_rounded_as_asked_whatever_the_program_has_set(
    products: Callable[[torch.device], AbstractContextManager[None]], rounds: bool
) -> None:
    with tf32_products(not rounds, CUDA):  # what the program has set
        with products(CPU):
            assert allowed() == (not rounds, not rounds)
        with products(CUDA):
            assert allowed() == (rounds, rounds)
        assert allowed() == (not rounds, not rounds)
