"""Training through the encoder in bfloat16, on a CPU with instructions for it and on one without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.encoder import load_encoder
from fusionkit.machine.devices import CPU
from fusionkit.store import Store
from tests.machine.multiplied import Multiplied

COSTS = ("training_flops", "prediction_flops", "peak_memory_alone")


@pytest.mark.parametrize("head", ["linear-tagger", "bilstm-crf"])
def test_steps_multiply_in_float32_and_cost_the_same(
    head: str, store: Store, train: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen: dict[str, Any] = {"methods": ["full"], "head": head, "compute_dtype": "bfloat16", "max_steps": 3}
    records = {}
    for has in (True, False):
        monkeypatch.setattr("fusionkit.machine.bfloat16.has_bfloat16", lambda has=has: has)
        with Multiplied() as watched:
            records[has] = train(store, out=tmp_path / str(has), **chosen)
        assert (torch.bfloat16 in watched.types) == has
    assert [records[True][cost] for cost in COSTS] == [records[False][cost] for cost in COSTS]


def test_an_encoder_in_bfloat16_multiplies_in_float32(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(5, 20, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    exact = load_encoder(str(model_folder), device="cpu").forward(ids, mask, torch.zeros_like(ids))
    encoder = load_encoder(str(model_folder), device="cpu", compute_dtype="bfloat16")
    assert encoder.device == CPU
    monkeypatch.setattr("fusionkit.machine.bfloat16.has_bfloat16", lambda: False)
    with Multiplied() as watched:
        found = encoder.forward(ids, mask, torch.zeros_like(ids))
    assert watched.types == {torch.float32}
    for right, layer in zip(exact, found, strict=True):
        assert layer.dtype == torch.bfloat16
        assert float((layer - right)[mask.bool()].norm() / right[mask.bool()].norm()) < 0.02
