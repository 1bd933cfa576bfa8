"""What every head of the table keeps, against formulas written again in NumPy (``conftest.py``)."""

from __future__ import annotations

import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fusionkit.errors import UsageError
from fusionkit.heads import HEADS, SEQUENCES, build_head, reads_sequences

WIDTH, CLASSES = 5, 3
EXACT: Any = {"rtol": 1e-11, "atol": 1e-12}


def built(case: Any, dropout: float = 0.0, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_head(case.name, WIDTH, CLASSES, dropout).double()


def batch_of(case: Any, lengths: tuple[int, ...] | None = None, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """States ``[rows, width]``, targets, one for each row of scores, offsets ``[sequences + 1]``."""
    lengths = case.lengths if lengths is None else lengths
    generator = torch.Generator().manual_seed(seed)
    states = 3 * torch.randn(sum(lengths), WIDTH, generator=generator, dtype=torch.float64)
    scored = len(lengths) // case.sides if case.by_example else sum(lengths)
    targets = torch.randint(CLASSES, (scored,), generator=generator)
    if case.several:
        targets = torch.randint(2, (scored, CLASSES), generator=generator).double()
    if case.numeric:
        targets = 5 * torch.rand(scored, generator=generator, dtype=torch.float64)
    return states, targets, torch.tensor([0, *itertools.accumulate(lengths)])


def examples(case: Any, offsets: Tensor) -> list[tuple[slice, slice, Tensor]]:
    """Of each example its rows, its rows of scores, and its own offsets."""
    found = []
    for k in range(0, len(offsets) - 1, case.sides):
        bounds = offsets[k : k + case.sides + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        number = k // case.sides
        found.append((rows, slice(number, number + 1) if case.by_example else rows, bounds - bounds[0]))
    return found


def weights_of(head: Any) -> dict[str, Any]:
    return {name: value.detach().numpy() for name, value in head.named_parameters()}


def test_every_contract_test_sees_every_head(cases: list[Any]) -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    assert sum("case" in inspect.signature(test).parameters for test in tests) >= 13
    assert [case.name for case in cases] == list(HEADS)
    assert len(cases) == 10


@pytest.mark.parametrize("lengths", [None, (0, 0), (1, 0), (0, 1), (1, 1), (7, 4)])
def test_scores_are_the_formula_for_each_example(case: Any, lengths: tuple[int, ...] | None) -> None:
    head, (states, _, offsets) = built(case), batch_of(case, lengths)
    before = states.clone()
    scores = head(states, offsets)
    assert torch.equal(states, before)
    found = []
    for rows, _, bounds in examples(case, offsets):
        sequences = np.split(states[rows].numpy(), bounds[1:-1].numpy())
        found.append(case.scores(*sequences, w=weights_of(head)))
    expected = np.concatenate(found)
    assert expected.shape[1] == (1 if case.numeric else CLASSES)
    assert scores.shape == expected.shape
    np.testing.assert_allclose(scores.detach().numpy(), expected, **EXACT)


@pytest.mark.parametrize(("width", "classes"), [(256, 2), (384, 9), (1024, 121)])
def test_parameter_count_is_exact(case: Any, width: int, classes: int) -> None:
    with torch.device("meta"):
        head = build_head(case.name, width, classes, 0.1)
    assert sum(p.numel() for p in head.parameters() if p.requires_grad) == case.count(width, classes)
    assert [name for name, _ in head.named_buffers()] == (["threshold"] if case.several else [])


def test_loss_is_the_formula(case: Any) -> None:
    head, (states, targets, offsets) = built(case), batch_of(case)
    scores = 4 * head(states, offsets)  # further apart than fresh weights give
    loss = head.loss(scores, targets, offsets)
    expected = case.loss(scores.detach().numpy(), targets.numpy(), offsets.numpy(), weights_of(head))
    assert loss.shape == ()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)


def test_a_batch_loss_weighs_its_examples_as_documented(case: Any) -> None:
    head, (states, targets, offsets) = built(case), batch_of(case)
    scores = head(states, offsets)
    total, weight = torch.zeros((), dtype=torch.float64), 0
    for rows, scored, bounds in examples(case, offsets):
        alone = head.loss(scores[scored], targets[scored], bounds)
        share = case.weigh(rows.stop - rows.start)
        total, weight = total + share * alone, weight + share
    torch.testing.assert_close(head.loss(scores, targets, offsets), total / weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_without_rows_is_scored_by_what_needs_none(case: Any, count: int) -> None:
    head, (states, targets, offsets) = built(case), batch_of(case, (0,) * (count * case.sides))
    scores = head(states, offsets)
    loss = head.loss(scores, targets, offsets)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in head.parameters())
    if not (case.by_example and count):
        assert loss.item() == 0
        assert all(p.grad is None or not p.grad.any() for p in head.parameters())
    decided = head.decode(scores, offsets)
    assert decided.shape == ((0, CLASSES) if case.several else (count if case.by_example else 0,))
    assert decided.dtype == (torch.float64 if case.numeric or case.several else torch.int64)


def test_gradients_reach_every_parameter(case: Any) -> None:
    head, (states, targets, offsets) = built(case), batch_of(case)
    head.loss(head(states, offsets), targets, offsets).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0


def test_gradients_are_those_of_finite_differences(case: Any) -> None:
    head, (states, targets, offsets) = built(case), batch_of(case)

    def loss(states: Tensor, *weights: Tensor) -> Tensor:
        return head.loss(head(states, offsets), targets, offsets)  # type: ignore[no-any-return]

    # gradcheck moves the weights in place; fast: along one random direction of each tensor.
    assert torch.autograd.gradcheck(loss, (states.requires_grad_(), *head.parameters()), fast_mode=True)


def test_decode_is_the_best_and_the_same_again(case: Any) -> None:
    head, (states, _, offsets) = built(case, dropout=0.5).eval(), batch_of(case)
    scores = head(states, offsets)
    first, again = head.decode(scores, offsets), head.decode(scores, offsets)
    assert first.dtype == (torch.float64 if case.numeric or case.several else torch.int64)
    assert (first.detach().numpy() if case.several else first.tolist()) == case.decode(
        scores.detach().numpy(), offsets.numpy(), weights_of(head)
    )
    assert torch.equal(first, again)


def test_scores_do_not_see_other_examples_nor_a_row_s_its_neighbours_unless_the_head_looks_there(case: Any) -> None:
    head, (states, _, offsets) = built(case), batch_of(case)
    rows, scored, _ = examples(case, offsets)[0]
    chosen = 0  # a row of the first example
    before = head(states, offsets)[scored] if case.across else head(states, offsets)[chosen]
    others = torch.ones(len(states), dtype=torch.bool)
    others[rows if case.across else chosen] = False
    assert others.any()
    states[others] = torch.nan
    after = head(states, offsets)[scored] if case.across else head(states, offsets)[chosen]
    torch.testing.assert_close(after, before, **EXACT)
    if case.across:
        states[rows.stop - 1] += 1
        assert not torch.isclose(head(states, offsets)[0], before[0]).any()


def test_a_batch_is_scored_as_its_examples_are_one_by_one(case: Any) -> None:
    head, (states, _, offsets) = built(case).float(), batch_of(case)
    states = states.float()
    alone = [head(states[rows], bounds) for rows, _, bounds in examples(case, offsets)]
    torch.testing.assert_close(head(states, offsets), torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_alone(case: Any) -> None:
    dropping, plain, (states, _, offsets) = built(case, dropout=0.5), built(case), batch_of(case)
    assert not torch.equal(dropping(states, offsets), dropping(states, offsets))
    assert torch.equal(plain(states, offsets), plain(states, offsets))
    assert torch.equal(dropping.eval()(states, offsets), plain(states, offsets))


def test_a_seed_gives_the_same_weights_and_another_seed_others(case: Any) -> None:
    first, again, other = (weights_of(built(case, seed=seed)) for seed in (3, 3, 4))
    assert first.keys() == again.keys() == other.keys()
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not any(np.array_equal(first[key], other[key]) for key in first)


def test_weights_survive_a_safetensors_file(case: Any, tmp_path: Path) -> None:
    head, other, (states, _, offsets) = built(case, seed=5), built(case, seed=6), batch_of(case)
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert torch.equal(head(states, offsets), other(states, offsets))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in head.state_dict().items())


def test_heads_that_read_sequences_are_told_apart_with_how_many(cases: list[Any]) -> None:
    assert {case.name: case.sides for case in cases if case.by_example} == SEQUENCES
    assert [name for name in HEADS if reads_sequences(name)] == ["bcn", "esim", "esim-regressor"]


@pytest.mark.parametrize(
    ("misspelt", "nearest"), [("cfr", "crf"), ("clasifier", "classifier"), ("linear_tagger", "linear-tagger")]
)
def test_an_unknown_head_is_refused_with_the_nearest(misspelt: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"unknown head '{misspelt}'") as caught:
        build_head(misspelt, WIDTH, CLASSES, 0.0)
    assert caught.value.remedy == f"did you mean {nearest!r}?"
    assert caught.value.expected == "one of " + ", ".join(sorted(HEADS))
