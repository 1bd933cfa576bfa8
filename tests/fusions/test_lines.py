"""Rows in lines and back, with gradients that autograd's own selections would have where padding counts for nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fusionkit.fusions.extra_layers import ExtraLayers
from fusionkit.fusions.padding import PaddedExamples

LENGTHS = [[3, 1, 4], [0, 2, 0, 5], [2, 2], [1], [4, 0], [1, 30, 17, 0, 19, 2, 31]]  # the last in three groups
HIDDEN = 6


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", [1, 2])
def test_lines_hold_each_head_of_each_example_and_give_its_rows_back(lengths: list[int], heads: int) -> None:
    rows = torch.randn(sum(lengths), HIDDEN)
    lines = PaddedExamples(offsets_of(lengths), heads)
    laid = lines.lines(lines.laid(rows))
    assert torch.equal(lines.taken(laid), rows)
    held = []
    for group, hidden in zip(laid, lines.hidden(rows.dtype), strict=True):
        assert group.shape[1:] == (hidden.shape[2], HIDDEN // heads)
        held += [line[there == 0] for line, (there,) in zip(group, hidden, strict=True)]
        assert set(hidden.unique().tolist()) <= {0.0, -torch.inf}
    assert sorted(map(len, held)) == sorted([max(length, 1) for length in lengths] * heads)
    for own in torch.split(rows, lengths):
        for of_head in own.unflatten(1, (heads, -1)).unbind(1):
            assert not len(own) or any(torch.equal(of_head, line) for line in held)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients_are_those_of_each_example_alone(lengths: list[int]) -> None:
    """No padding, no lines: an example is alone in its batch."""
    fusion = ExtraLayers(1, HIDDEN, n=2).double()
    states = torch.randn(sum(lengths), 1, HIDDEN, dtype=torch.float64, requires_grad=True)
    wanted = [states, *fusion.parameters()]
    weighing = torch.randn(sum(lengths), HIDDEN, dtype=torch.float64)
    together = (fusion(states, offsets_of(lengths)) * weighing).sum()
    pieces = [
        own for own in zip(torch.split(states, lengths), torch.split(weighing, lengths), strict=True) if len(own[0])
    ]
    alone = torch.stack([(fusion(own, offsets_of([len(own)])) * weights).sum() for own, weights in pieces]).sum()
    for ours, theirs in zip(torch.autograd.grad(together, wanted), torch.autograd.grad(alone, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_runs_side_by_side_have_the_gradients_that_they_have_alone(lengths: list[int]) -> None:
    fusion = ExtraLayers(1, HIDDEN, n=1).double()
    states, offsets = torch.randn(sum(lengths), 1, HIDDEN, dtype=torch.float64), offsets_of(lengths)
    runs = {
        name: torch.stack([value.detach(), torch.randn_like(value)]).requires_grad_()
        for name, value in fusion.named_parameters()
    }
    weighing = torch.randn(2, sum(lengths), HIDDEN, dtype=torch.float64)

    def one(own: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(fusion, own, (states, offsets))
        return found

    together = torch.autograd.grad((vmap(one)(runs) * weighing).sum(), list(runs.values()))
    for run in range(2):
        own = {name: value[run].detach().requires_grad_() for name, value in runs.items()}
        alone = torch.autograd.grad((one(own) * weighing[run]).sum(), list(own.values()))
        for ours, theirs in zip(together, alone, strict=True):
            torch.testing.assert_close(ours[run], theirs, rtol=0, atol=1e-10)
