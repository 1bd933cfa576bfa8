"""Diff pruning: gates, the penalty, the two phases, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusionkit.errors import StoreError
from fusionkit.methods import apply, parse_method
from fusionkit.methods.attached import Attached
from fusionkit.methods.diff_prune import Difference

Encoder = Callable[[str], Any]
Batch = Callable[..., dict[str, Tensor]]
STEPS = 12


def train(attached: Attached, inputs: dict[str, Tensor], first: int = 0, last: int = STEPS) -> list[float]:
    """Steps first … last - 1 of a small training; the penalties."""
    groups = [{"params": [p], "lr": attached.rates.get(name, 1e-2)} for name, p in attached.trainable.items()]
    optimizer, penalties = torch.optim.SGD(groups), []
    for step in range(first, last):
        assert attached.begin_step is not None
        assert attached.penalty is not None
        attached.begin_step(step, STEPS)
        torch.manual_seed(step)
        attached.train()
        states = attached.model(**inputs).last_hidden_state
        penalty = attached.penalty()
        penalties.append(float(penalty.detach()))
        optimizer.zero_grad()
        (states[:, 0].square().sum(-1).mean() - states[:, 0, 0].sum() + penalty).backward()
        optimizer.step()
    return penalties


def differing(attached: Attached, plain: Any) -> int:
    """How many weights are others in evaluation mode."""
    attached.train(False)
    found = 0
    for name, old in plain.named_parameters():
        owner, _, last = name.rpartition(".")
        if not name.startswith("pooler"):
            found += int((getattr(attached.model.get_submodule(owner), last) != old).sum())
    return found


def test_gates_are_hard_concrete() -> None:
    """Against the formula at single numbers, and the share of closed gates against ``1 − sigmoid(α)``."""
    each = Difference(torch.zeros(20_000))
    with torch.no_grad():
        each.location.fill_(-0.4)
    torch.manual_seed(0)
    each.draw()
    assert each.noise is not None
    s = 1 / (1 + torch.exp(-(each.noise - 0.4) * 3 / 2))
    expected = torch.minimum(torch.ones(()), torch.maximum(torch.zeros(()), 3 * s - 1.5))
    torch.testing.assert_close(each.gate(each.noise), expected)
    closed = (each.gate(each.noise) == 0).float().mean()
    assert abs(float(closed) - (1 - float(torch.sigmoid(torch.tensor(-0.4))))) < 0.02
    assert set(each.gate(None).tolist()) == {0.0}


def test_gates_are_drawn_anew_in_each_step_of_training(encoder: Encoder, batch: Batch) -> None:
    attached = apply(encoder("bert"), parse_method("diff-prune"))
    with torch.no_grad():
        for name, parameter in attached.trainable.items():
            parameter.add_(0.5 if name.endswith(".w") else -5)
    attached.train()
    for module in attached.model.modules():  # without dropout
        module.p = 0.0 if isinstance(module, torch.nn.Dropout) else getattr(module, "p", None)
    first, second = (attached.model(**batch("bert")).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)  # two passes of one step
    attached.train()
    assert not torch.allclose(attached.model(**batch("bert")).last_hidden_state, second)
    attached.train(False)
    first, second = (attached.model(**batch("bert")).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)


def test_the_mask_is_fixed_after_its_share_of_the_steps(encoder: Encoder, batch: Batch) -> None:
    attached = apply(encoder("bert"), parse_method("diff-prune:target=0.01,fix=0.5,penalty=10"))
    count = sum(p.numel() for name, p in attached.trainable.items() if name.endswith(".w"))
    penalties = train(attached, batch("bert"), last=6)
    assert penalties[0] == pytest.approx(10 * (1 / (1 + math.exp(-5)) - 0.01) * count, rel=1e-4)
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[-1] < penalties[0]
    before = attached.delta()
    penalties = train(attached, batch("bert"), first=6)
    after = attached.delta()
    assert set(penalties) == {0.0}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if name.endswith(":places"))
    assert any(not torch.equal(before[name], after[name]) for name in before if name.endswith(":values"))
    assert 0 < differing(attached, encoder("bert")) <= int(0.01 * count)


def test_the_mask_is_not_fixed_before_a_weight_differs(encoder: Encoder) -> None:
    """The first step of a warm-up has the rate 0: a mask that it fixed would keep nothing."""
    attached = apply(encoder("bert"), parse_method("diff-prune:fix=0.01"))
    assert attached.begin_step is not None
    assert not attached.begin_step(1, STEPS)
    with torch.no_grad():
        next(p for name, p in attached.trainable.items() if name.endswith(".w")).add_(1)
    assert attached.begin_step(2, STEPS)
    assert attached.delta()


def test_what_is_kept_is_the_largest_and_what_evaluation_sees(encoder: Encoder) -> None:
    attached = apply(encoder("bert"), parse_method("diff-prune:target=0.01"))
    draw = torch.Generator().manual_seed(1)
    sizes = []
    with torch.no_grad():
        for name, parameter in attached.trainable.items():
            if name.endswith(".w"):
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
                sizes.append(parameter.flatten().abs())
    least = torch.cat(sizes).sort().values[-int(0.01 * len(torch.cat(sizes)))]
    kept = torch.cat([tensor for name, tensor in attached.delta().items() if name.endswith(":values")])
    assert kept.abs().min() == least
    assert differing(attached, encoder("bert")) == len(kept) == int(0.01 * len(torch.cat(sizes)))


@pytest.mark.parametrize("stop", [4, 9])
def test_training_goes_on_from_a_state_in_either_phase(encoder: Encoder, batch: Batch, stop: int) -> None:
    whole = apply(encoder("bert"), parse_method("diff-prune:target=0.05"))
    train(whole, batch("bert"))
    part = apply(encoder("bert"), parse_method("diff-prune:target=0.05"))
    train(part, batch("bert"), last=stop)
    state = part.state()
    again = apply(encoder("bert"), parse_method("diff-prune:target=0.05"))
    again.load_state(state)
    train(again, batch("bert"), first=stop)
    expected, found = whole.delta(), again.delta()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_what_was_kept_of_another_method_is_refused(encoder: Encoder) -> None:
    kept = apply(encoder("bert"), parse_method("bitfit")).delta()
    for method in ("diff-prune", "houlsby:4", "full"):
        with pytest.raises(StoreError, match="of another method or another encoder"):
            apply(encoder("bert"), parse_method(method)).load_delta(kept)
    with pytest.raises(StoreError, match="of another method or another encoder"):
        apply(encoder("gpt2"), parse_method("bitfit")).load_delta(kept)
