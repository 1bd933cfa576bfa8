"""The LSTM over layers against torch's own, started alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fusionkit.fusions import build_fusion


def test_the_last_state_is_that_of_torchs_lstm_over_the_layers() -> None:
    torch.manual_seed(4)
    fusion: Any = build_fusion("depth-lstm", 5, 8)
    theirs = nn.LSTM(8, 8, batch_first=True)
    names = {"input.weight": "weight_ih_l0", "input.bias": "bias_ih_l0"}
    names |= {"memory.weight": "weight_hh_l0", "memory.bias": "bias_hh_l0"}
    theirs.load_state_dict({names[name]: value for name, value in fusion.state_dict().items()})
    states = torch.randn(7, 5, 8)
    _, (last, _) = theirs(states)
    torch.testing.assert_close(fusion(states), last[0])


def test_fresh_weights_are_spread_as_those_of_torchs_lstm() -> None:
    torch.manual_seed(4)
    fusion: Any = build_fusion("depth-lstm", 5, 64)
    bound = 64**-0.5
    sizes = [parameter.detach().abs().max() for parameter in fusion.parameters()]
    assert len(sizes) == 4
    assert all(0.9 * bound < size <= bound for size in sizes)
