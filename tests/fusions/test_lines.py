"""Attention in lines, beside attention of each example and head alone: values and gradients, of one run and of many."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fusionkit.fusions.example_attention import Lines, attend

LENGTHS = [[3, 1, 4], [0, 2, 0, 5], [2, 2], [1], [4, 0], [1, 30, 17, 0, 19, 2, 31]]  # the last in three groups
WIDTH = 6


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], heads: int) -> Tensor:
    """The formula, an example and a head at a time."""
    found = []
    for own in zip(*(torch.split(each, lengths) for each in (q, k, v)), strict=True):
        of_heads = []
        for one, other, value in zip(*(each.chunk(heads, 1) for each in own), strict=True):
            of_heads.append((one @ other.T / math.sqrt(WIDTH // heads)).softmax(-1) @ value)
        found.append(torch.cat(of_heads, 1))
    return torch.cat(found)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", [1, 2])
def test_each_head_of_an_example_attends_to_its_own_rows(lengths: list[int], heads: int) -> None:
    q, k, v, weighing = torch.randn(4, sum(lengths), WIDTH, dtype=torch.float64)
    q, k, v = given = [each.clone().requires_grad_() for each in (q, k, v)]
    found, expected = attend(q, k, v, Lines(offsets_of(lengths), heads)), one_by_one(q, k, v, lengths, heads)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((each * weighing).sum(), given) for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_runs_side_by_side_have_what_they_have_alone(lengths: list[int]) -> None:
    """The keys are the same for all runs; the queries lie along another axis."""
    rows, lines = sum(lengths), Lines(offsets_of(lengths), 2)
    q = torch.randn(rows, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    k = torch.randn(rows, WIDTH, dtype=torch.float64, requires_grad=True)
    v, weighing = torch.randn(2, 3, rows, WIDTH, dtype=torch.float64)
    v.requires_grad_()
    found = vmap(lambda q, v: attend(q, k, v, lines), (1, 0))(q, v)
    expected = torch.stack([attend(q[:, run], k, v[run], lines) for run in range(3)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad((each * weighing).sum(), (q, k, v)) for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("more", "longer"), [(0, 0), (5, 3)])
def test_lines_of_one_length_give_the_same_and_rows_behind_the_last_example_learn_nothing(
    lengths: list[int], more: int, longer: int
) -> None:
    """As a GPU lays them out, in minibatches that are filled up."""
    rows, offsets = sum(lengths), offsets_of(lengths)
    lines, expected_lines = Lines(offsets, 2, max(lengths) + longer, rows + more), Lines(offsets, 2)
    q, k, v, weighing = torch.randn(4, 3, rows + more, WIDTH, dtype=torch.float64)
    weighing[:, rows:] = 0
    q, k, v = given = [each.clone().requires_grad_() for each in (q, k, v)]
    found = vmap(lambda q, k, v: attend(q, k, v, lines))(q, k, v)
    expected = torch.stack([attend(q[run, :rows], k[run, :rows], v[run, :rows], expected_lines) for run in range(3)])
    torch.testing.assert_close(found[:, :rows], expected, rtol=0, atol=1e-12)
    ours = torch.autograd.grad((found * weighing).sum(), given)
    theirs = torch.autograd.grad((expected * weighing[:, :rows]).sum(), given)  # zeros behind the rows
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert not one[:, rows:].any()


def test_an_example_that_is_nan_reaches_no_other() -> None:
    q, k, v = torch.randn(3, 9, WIDTH)
    q, k, v = given = [each.clone().requires_grad_() for each in (q, k, v)]
    with torch.no_grad():
        for each in given:
            each[:4] = torch.nan
    found = attend(q, k, v, Lines(torch.tensor([0, 4, 4, 6, 9]), 2))
    assert found[:4].isnan().all()
    assert found[4:].isfinite().all()
    for gradient in torch.autograd.grad(found[4:].square().sum(), given):
        assert gradient[4:].isfinite().all()


def test_in_bfloat16_products_are_float32s_on_a_cpu() -> None:
    q, k, v = torch.randn(3, 9, WIDTH).bfloat16()
    lines = Lines(torch.tensor([0, 4, 9]), 2)
    found = attend(q, k, v, lines)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, attend(q.float(), k.float(), v.float(), lines).bfloat16())
    expected = attend(q.float(), k.float(), v.float(), lines)
    with torch.autocast("cpu", torch.bfloat16):
        inside = attend(q.float(), k.float(), v.float(), lines)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
