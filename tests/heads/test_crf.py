"""The linear-chain CRF against all tag sequences, against pytorch-crf, and at the ends of float32."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torchcrf
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.heads.crf import FLOOR, Crf
from fusionkit.heads.crf import crf as crf_head
from fusionkit.ragged import pad

Array = NDArray[np.float64]

RAGGED = {
    "one example": [4],
    "single words": [1, 1, 1],
    "some without words": [0, 3, 0, 0, 1, 5, 0],
    "long and short": [50, 1, 17, 2, 50, 33],
}


def crf_of(classes: int, spread: float = 2.0, seed: int = 0) -> Crf:
    """A float64 CRF whose transitions, starts and ends are far from their small initial values."""
    torch.manual_seed(seed)
    crf = crf_head(4, classes, 0.0).double()
    with torch.no_grad():
        for weights in (crf.transitions, crf.start, crf.end):
            weights.copy_(spread * torch.randn_like(weights))
    return crf


def batch_of(lengths: list[int], classes: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Emissions ``[words, classes]``, tags ``[words]``, offsets ``[examples + 1]``."""
    generator = torch.Generator().manual_seed(seed)
    emissions = 3 * torch.randn(sum(lengths), classes, generator=generator, dtype=torch.float64)
    tags = torch.randint(classes, (sum(lengths),), generator=generator)
    return emissions, tags, torch.tensor([0, *itertools.accumulate(lengths)])


def oracle_of(crf: Crf) -> torchcrf.CRF:
    """pytorch-crf with the same weights."""
    oracle = torchcrf.CRF(len(crf.start), batch_first=True).to(crf.start.dtype)
    with torch.no_grad():
        oracle.transitions.copy_(crf.transitions)
        oracle.start_transitions.copy_(crf.start)
        oracle.end_transitions.copy_(crf.end)
    return oracle


def sum_of_logs(values: Array) -> Array:
    top = values.max(0)
    return np.asarray(top + np.log(np.exp(values - top).sum(0)))


def numpy_log_partition(crf: Crf, emissions: Tensor) -> float:
    """The textbook recursion in logarithms, one example, float64."""
    start, step, end = (w.detach().double().numpy() for w in (crf.start, crf.transitions, crf.end))
    first, *rest = emissions.detach().double().numpy()
    alpha = start + first
    for emission in rest:
        alpha = sum_of_logs(alpha[:, None] + step) + emission
    return float(sum_of_logs(alpha + end))


@pytest.mark.parametrize("length", range(6))
def test_scores_partition_and_path_are_those_of_all_tag_sequences(length: int) -> None:
    crf = crf_of(3)
    emissions, tags, offsets = batch_of([length], 3)
    start, step, end, e = (w.detach().numpy() for w in (crf.start, crf.transitions, crf.end, emissions))

    def score(y: tuple[int, ...]) -> float:
        inner = sum(step[y[t - 1], y[t]] for t in range(1, length))
        return float(start[y[0]] + sum(e[t, y[t]] for t in range(length)) + inner + end[y[-1]]) if y else 0.0

    every = {y: score(y) for y in itertools.product(range(3), repeat=length)}
    assert len(every) == 3**length
    total = math.log(sum(math.exp(value) for value in every.values()))
    given_path = every[tuple(int(tag) for tag in tags)]
    assert crf.path_score(emissions, tags, offsets).tolist() == pytest.approx([given_path], rel=1e-12)
    assert crf.log_partition(emissions, offsets).tolist() == pytest.approx([total], rel=1e-12)
    assert crf.loss(emissions, tags, offsets).item() == pytest.approx(total - given_path, rel=1e-9)
    assert tuple(crf.decode(emissions, offsets).tolist()) == max(every, key=lambda y: every[y])


@pytest.mark.parametrize("lengths", RAGGED.values(), ids=RAGGED)
@pytest.mark.parametrize("classes", [2, 9])
def test_likelihood_and_path_are_those_of_pytorch_crf(lengths: list[int], classes: int) -> None:
    crf = crf_of(classes)
    oracle = oracle_of(crf)
    emissions, tags, offsets = batch_of(lengths, classes)
    some = [length for length in lengths if length]  # the oracle takes no example without words
    compact = torch.tensor([0, *itertools.accumulate(some)])
    (padded, mask), (padded_tags, _) = pad(emissions, compact), pad(tags, compact)
    expected = -oracle(padded, padded_tags, mask=mask, reduction="none")

    got = crf.log_partition(emissions, offsets) - crf.path_score(emissions, tags, offsets)
    filled = torch.tensor(lengths) > 0
    torch.testing.assert_close(got[filled], expected, rtol=1e-10, atol=1e-10)
    assert not got[~filled].any()
    torch.testing.assert_close(crf.loss(emissions, tags, offsets), expected.mean(), rtol=1e-10, atol=1e-10)
    assert crf.decode(emissions, offsets).tolist() == list(itertools.chain(*oracle.decode(padded, mask=mask)))


def test_float32_gradients_are_those_of_pytorch_crf_in_float64() -> None:
    crf = crf_of(9)
    oracle = oracle_of(crf)
    lengths = RAGGED["long and short"]
    emissions, tags, offsets = batch_of(lengths, 9)
    reference = emissions.clone().requires_grad_()
    (padded, mask), (padded_tags, _) = pad(reference, offsets), pad(tags, offsets)
    torch.autograd.backward(-oracle(padded, padded_tags, mask=mask, reduction="mean"))

    crf, emissions = crf.float(), emissions.float().requires_grad_()
    torch.autograd.backward(crf.loss(emissions, tags, offsets))
    pairs = [
        (emissions, reference),
        (crf.transitions, oracle.transitions),
        (crf.start, oracle.start_transitions),
        (crf.end, oracle.end_transitions),
    ]
    for ours, theirs in pairs:
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)


def test_gradients_of_the_loss_are_those_of_finite_differences() -> None:
    crf = crf_of(3)
    emissions, tags, offsets = batch_of([3, 1, 0, 4], 3)

    def loss(scores: Tensor, *weights: Tensor) -> Tensor:
        return crf.loss(scores, tags, offsets)  # gradcheck moves the weights in place

    inputs = (emissions.requires_grad_(), crf.transitions, crf.start, crf.end)
    assert torch.autograd.gradcheck(loss, inputs)


@given(lengths=st.lists(st.integers(0, 12), max_size=8), classes=st.integers(1, 5), seed=st.integers(0, 99))
def test_an_example_does_not_see_its_batch(lengths: list[int], classes: int, seed: int) -> None:
    crf = crf_of(classes, seed=seed)
    emissions, tags, offsets = batch_of(lengths, classes, seed)
    partition, path = crf.log_partition(emissions, offsets), crf.path_score(emissions, tags, offsets)
    assert partition.shape == path.shape == (len(lengths),)
    alone = [(emissions[i:j], tags[i:j], torch.tensor([0, j - i])) for i, j in itertools.pairwise(offsets)]
    for example, (e, y, o) in enumerate(alone):
        torch.testing.assert_close(partition[example : example + 1], crf.log_partition(e, o), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(path[example : example + 1], crf.path_score(e, y, o), rtol=1e-10, atol=1e-10)
    together = crf.decode(emissions, offsets).tolist()
    assert together == list(itertools.chain(*(crf.decode(e, o).tolist() for e, _, o in alone)))


def test_no_tag_sequence_is_likelier_than_certain() -> None:
    crf = crf_of(9).float()
    emissions, _, offsets = batch_of(RAGGED["long and short"], 9)
    emissions = emissions.float()
    best = crf.decode(emissions, offsets)
    gap = crf.log_partition(emissions, offsets) - crf.path_score(emissions, best, offsets)
    assert (gap > -1e-4).all()


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_very_large_emissions_stay_finite_and_exact(size: float) -> None:
    crf = crf_of(9).float()
    emissions, tags, offsets = batch_of([50, 1, 20], 9)
    emissions = (size * emissions.sign() + emissions).float().requires_grad_()
    partition = crf.log_partition(emissions, offsets)
    expected = [numpy_log_partition(crf, emissions[i:j]) for i, j in itertools.pairwise(offsets)]
    np.testing.assert_allclose(partition.detach().numpy(), expected, rtol=1e-6)

    loss = crf.loss(emissions, tags, offsets)
    torch.autograd.backward(loss)
    assert math.isfinite(loss.item())
    for tensor in (emissions, crf.transitions, crf.start, crf.end):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


def forced(crf: Crf, tags: list[int]) -> Tensor:
    """Float32 emissions that leave no other path than these tags."""
    emissions = torch.full((len(tags), len(crf.start)), -1e4)
    emissions[torch.arange(len(tags)), torch.tensor(tags)] = 0.0
    return emissions.requires_grad_()


def low_crf(low: float) -> Crf:
    """Tag 1 may neither start, end, nor follow or precede anything, at a price of ``low`` each time."""
    crf = crf_head(4, 3, 0.0)
    with torch.no_grad():
        for weights in (crf.transitions, crf.start, crf.end):
            weights.zero_()
        crf.transitions[1, :] = crf.transitions[:, 1] = crf.start[1] = crf.end[1] = low
    return crf


@pytest.mark.parametrize("low", [-5.0, 1.0 - FLOOR])
def test_a_path_over_very_low_transitions_is_exact_in_float32(low: float) -> None:
    crf, tags = low_crf(low), [1, 1, 0, 1, 1, 1]
    emissions = forced(crf, tags)
    partition = crf.log_partition(emissions, torch.tensor([0, 6]))
    # start, 1→1, 1→0, 0→1, 1→1, 1→1, end
    assert partition.item() == pytest.approx(7 * low, rel=1e-6)
    torch.autograd.backward(partition)
    assert crf.transitions.grad is not None
    # The one possible path uses 1→1 three times, 1→0 and 0→1 once each.
    expected = torch.tensor([[0.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(crf.transitions.grad, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("low", [-100.0, -1e4])
def test_a_path_over_transitions_below_the_floor_stays_finite(low: float) -> None:
    crf, tags = low_crf(low), [1, 1, 0, 1, 1, 1]
    emissions = forced(crf, tags)
    offsets = torch.tensor([0, 6])
    loss = crf.loss(emissions, torch.tensor(tags), offsets)
    torch.autograd.backward(loss)
    # Each of the seven counts as FLOOR below the highest, 0.
    assert crf.log_partition(emissions, offsets).item() == pytest.approx(-7 * FLOOR, rel=1e-6)
    for tensor in (emissions, crf.transitions, crf.start, crf.end):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


def test_transitions_start_small_and_uniform() -> None:
    torch.manual_seed(0)
    crf = crf_head(4, 60, 0.0)
    assert crf.transitions.shape == (60, 60)
    for weights in (crf.transitions, crf.start, crf.end):
        assert weights.detach().abs().max() <= 0.1
    # A uniform variable on ±0.1 has standard deviation 0.2/√12.
    assert crf.transitions.std().item() == pytest.approx(0.2 / math.sqrt(12), rel=0.05)
    assert crf.transitions.mean().item() == pytest.approx(0.0, abs=0.005)
