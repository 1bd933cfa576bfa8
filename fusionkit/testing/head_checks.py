"""The contract of heads: every check takes a case and raises AssertionError where it is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.heads import build_head, gives_numbers, head_entry, suits
from fusionkit.specs import RunSpec
from fusionkit.testing.expect import STEPS, expect, expect_alone_and_stacked, expect_close, path_of
from fusionkit.testing.shared_checks import SHARED_CHECKS

WIDTH, CLASSES = 5, 3
SIZES = ((256, 2), (384, 9), (1024, 121))  # for which parameters are counted: a width and a number of classes


@dataclass(frozen=True)
class HeadCase:
    """A head, and the claims about it.

    Attributes:
        name: as on the command line. parameters: its number of parameters, from a width and a number of classes.
        formula: its scores in NumPy, from an example's one or two sequences ``[rows, width]`` and the weights ``w``.
            loss, decode: its loss from scores, targets, offsets and weights; its decisions from scores, offsets and
            weights. weigh: the weight of an example in a batch's loss, from its number of rows.
    """

    name: str
    parameters: Callable[[int, int], int] | None = None
    formula: Callable[..., Any] | None = None
    loss: Callable[..., float] | None = None
    decode: Callable[..., list[Any]] | None = None
    weigh: Callable[[int], int] | None = None

    across_flag = "across_rows = True"

    @property
    def sides(self) -> int:
        return head_entry(self.name).sequences or 1

    @property
    def by_example(self) -> bool:
        """Whether the head gives one row of scores per example."""
        return head_entry(self.name).sequences is not None

    @property
    def numeric(self) -> bool:
        return gives_numbers(self.name)

    @property
    def several(self) -> bool:
        """Whether a row may have any number of classes, each decided alone."""
        return suits(self.name, "multi-label")

    @property
    def across(self) -> bool:
        modules = build_head(self.name, WIDTH, CLASSES, 0.0).modules()
        return any(getattr(module, "across_rows", False) for module in modules)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of rows of each sequence of a batch."""
        if self.sides == 2:
            return (3, 1, 0, 2, 4, 0, 2, 5, 0, 0)
        pooled = not self.by_example and "tagging" not in head_entry(self.name).tasks
        return (1,) * 6 if pooled else (3, 1, 0, 5, 2)

    def build(self, *, dropout: float = 0.0, seed: int = 0) -> Any:
        """The head in float64, with fresh weights, which are random."""
        torch.manual_seed(seed)
        return build_head(self.name, WIDTH, CLASSES, dropout).double()

    def fresh(self, *, seed: int = 0) -> Any:
        return self.build(seed=seed)

    def batch(self, lengths: tuple[int, ...] | None = None, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """States ``[rows, width]``, targets, one for each row of scores, offsets ``[sequences + 1]``."""
        lengths = self.lengths if lengths is None else lengths
        generator = torch.Generator().manual_seed(seed)
        states = 3 * torch.randn(sum(lengths), WIDTH, generator=generator, dtype=torch.float64)
        scored = len(lengths) // self.sides if self.by_example else sum(lengths)
        targets = torch.randint(CLASSES, (scored,), generator=generator)
        if self.numeric:
            targets = 5 * torch.rand(scored, generator=generator, dtype=torch.float64)
        if self.several:
            targets = torch.randint(2, (scored, CLASSES), generator=generator).double()
        return states, targets, torch.tensor([0, *itertools.accumulate(lengths)])

    def examples(self, offsets: Tensor) -> list[tuple[slice, slice, Tensor]]:
        found = []
        for k in range(0, len(offsets) - 1, self.sides):
            bounds = offsets[k : k + self.sides + 1]
            rows, number = slice(int(bounds[0]), int(bounds[-1])), k // self.sides
            found.append((rows, slice(number, number + 1) if self.by_example else rows, bounds - bounds[0]))
        return found


def check_head(
    head: type | str,
    *,
    parameters: Callable[[int, int], int] | None = None,
    formula: Callable[..., Any] | None = None,
    loss: Callable[..., float] | None = None,
    decode: Callable[..., list[Any]] | None = None,
) -> None:
    """Run every check on a head.

    Args:
        head: a class, or a text as on the command line. parameters, formula, loss, decode: as in :class:`HeadCase`;
            claims that are not given are not compared.

    Raises:
        AssertionError: with what was expected. UsageError: the object is not a head.
    """
    with torch.random.fork_rng(devices=[]):
        for check in HEAD_CHECKS:
            check(HeadCase(path_of(head), parameters, formula, loss, decode))


def weights_of(head: Any) -> dict[str, Any]:
    return {name: value.detach().numpy() for name, value in head.named_parameters()}


def scores_have_a_row_each(case: HeadCase) -> None:
    """One score per class, or one number, for each row or each example; the states are not changed."""
    shapes: list[tuple[int, ...]] = [case.lengths, (0, 0), (1, 0), (0, 1), (1, 1), (7, 4)]
    head = case.build()
    for lengths in shapes:
        states, targets, offsets = case.batch(lengths)
        before = states.clone()
        scores = head(states, offsets)
        expected = (len(targets), 1 if case.numeric else CLASSES)
        expect(scores.shape == expected, f"scores {tuple(scores.shape)} of rows {lengths}, expected {expected}")
        expect(torch.equal(states, before), "the head changes the states that it reads")
        if case.formula is not None:
            found = []
            for rows, _, bounds in case.examples(offsets):
                sequences = np.split(states[rows].numpy(), bounds[1:-1].numpy())
                found.append(case.formula(*sequences, w=weights_of(head)))
            expect_close(scores, np.concatenate(found), f"scores of rows {lengths}")


def parameters_are_as_many_as_declared(case: HeadCase) -> None:
    """Counted at several widths and numbers of classes."""
    for width, classes in SIZES:
        with torch.device("meta"):
            head = build_head(case.name, width, classes, 0.1)
        found = sum(p.numel() for p in head.parameters() if p.requires_grad)
        declared = found if case.parameters is None else case.parameters(width, classes)
        expect(found == declared, f"{found:,} parameters at {width} × {classes}, declared {declared:,}")


def loss_is_one_number(case: HeadCase) -> None:
    """The loss of all rows; a batch's loss is the mean of its examples' losses, weighted as claimed."""
    head, (states, targets, offsets) = case.build(), case.batch()
    scores = 4 * head(states, offsets)  # further apart than fresh weights give
    loss = head.loss(scores, targets, offsets)
    expect(loss.shape == () and bool(torch.isfinite(loss)), f"the loss is {loss}")
    if case.loss is not None:
        expected = case.loss(scores.detach().numpy(), targets.numpy(), offsets.numpy(), weights_of(head))
        expect_close(loss, expected, "the loss", {"rtol": 1e-12})
    if case.weigh is None:
        return
    total, weight = torch.zeros((), dtype=torch.float64), 0
    for rows, scored, bounds in case.examples(offsets):
        share = case.weigh(rows.stop - rows.start)
        total, weight = total + share * head.loss(scores[scored], targets[scored], bounds), weight + share
    expect_close(loss, total / weight, "the loss beside those of its examples", {"rtol": 1e-12})


def a_batch_without_rows_is_scored_by_what_needs_none(case: HeadCase) -> None:
    """A batch may hold only examples without words: this gives no NaN."""
    for count in (0, 1, 3):
        head, (states, targets, offsets) = case.build(), case.batch((0,) * (count * case.sides))
        scores = head(states, offsets)
        loss = head.loss(scores, targets, offsets)
        loss.backward()
        grads = [p.grad for p in head.parameters() if p.grad is not None]
        expect(bool(torch.isfinite(loss)), f"the loss of {count} examples without rows is {loss.item()}")
        expect(all(bool(torch.isfinite(grad).all()) for grad in grads), "gradients over no rows are not finite")
        if not (case.by_example and count):
            expect(loss.item() == 0, f"the loss over no rows is {loss.item()}, expected 0")
            expect(not any(bool(grad.any()) for grad in grads), "a batch without rows has a gradient that is not zero")
        expected = (0, CLASSES) if case.several else (count if case.by_example else 0,)
        decided = head.decode(scores, offsets)
        expect(decided.shape == expected, f"decided {tuple(decided.shape)} of no rows, expected {expected}")


def gradients_reach_every_parameter(case: HeadCase) -> None:
    """And the gradients are those of finite differences."""
    head, (states, targets, offsets) = case.build(), case.batch()
    head.loss(head(states, offsets), targets, offsets).backward()
    for name, parameter in head.named_parameters():
        expect(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), f"no gradient reaches {name}")
        expect(bool(torch.isfinite(parameter.grad).all()), f"the gradient of {name} is not finite")

    def loss(states: Tensor, *weights: Tensor) -> Tensor:
        return head.loss(head(states, offsets), targets, offsets)  # type: ignore[no-any-return]

    # gradcheck perturbs the weights in place; fast: along one random direction of each tensor.
    right = torch.autograd.gradcheck(loss, (states.requires_grad_(), *head.parameters()), fast_mode=True)
    expect(right, "the gradients are not those of finite differences")


def decisions_are_classes_or_numbers(case: HeadCase) -> None:
    """Decisions are the same each time for the same scores; probabilities, if the head has any, sum to one.

    For a multi-label head the decisions are the probabilities, from 0 to 1 each.
    """
    head, (states, _, offsets) = case.build(dropout=0.5).eval(), case.batch()
    scores = head(states, offsets)
    first, again = head.decode(scores, offsets), head.decode(scores, offsets)
    dtype = torch.float64 if case.numeric or case.several else torch.int64
    expect(first.dtype == dtype, f"decided {first.dtype}, expected {dtype}")
    expect(torch.equal(first, again), "decided twice, it decides otherwise")
    if case.several:
        expect(bool(((first >= 0) & (first <= 1)).all()), "it decides by probabilities outside of 0 to 1")
    elif not case.numeric:
        expect(bool(((first >= 0) & (first < CLASSES)).all()), "decode gives numbers that are no classes")
    if case.decode is not None:
        expected = case.decode(scores.detach().numpy(), offsets.numpy(), weights_of(head))
        expect_close(first, expected, "the decisions")
    if (probabilities := getattr(head, "probabilities", None)) is not None:
        found = probabilities(scores)
        expect(found.shape == scores.shape, f"probabilities {tuple(found.shape)}, expected {tuple(scores.shape)}")
        if case.several:
            return
        expect_close(found.sum(-1), torch.ones(len(scores), dtype=torch.float64), "the sum of probabilities")


def dropout_acts_in_training_alone(case: HeadCase) -> None:
    """The head applies ``--dropout``; without it, and in evaluation, nothing is random."""
    dropping, plain, (states, _, offsets) = case.build(dropout=0.5), case.build(), case.batch()
    expect(not torch.equal(dropping(states, offsets), dropping(states, offsets)), "dropout does not act in training")
    expect(torch.equal(plain(states, offsets), plain(states, offsets)), "scores are random without dropout")
    expect(torch.equal(dropping.eval()(states, offsets), plain(states, offsets)), "dropout acts in evaluation")


def another_seed_gives_other_weights(case: HeadCase) -> None:
    """Each head draws some of its weights at random."""
    first, other = weights_of(case.build(seed=3)), weights_of(case.build(seed=4))
    expect(not all(np.array_equal(first[key], other[key]) for key in first), "another seed gives the same weights")


def runs_in_a_stack_are_runs_alone(case: HeadCase) -> None:
    """Runs trained together, by ``torch.func.vmap`` where possible, end with the same weights as each alone."""
    task = head_entry(case.name).tasks[0]
    spec = RunSpec(store="", task=task, label="", fusion="linear", head=case.name)
    batches = []
    for step in range(STEPS):
        states, targets, offsets = case.batch(seed=step)
        batches.append(Batch(states.unsqueeze(1).expand(-1, 2, -1).contiguous(), offsets, targets, None, offsets))
    expect_alone_and_stacked(spec, (2, WIDTH, CLASSES, case.sides), batches)


HEAD_CHECKS: tuple[Callable[[HeadCase], None], ...] = (
    scores_have_a_row_each,
    parameters_are_as_many_as_declared,
    loss_is_one_number,
    a_batch_without_rows_is_scored_by_what_needs_none,
    gradients_reach_every_parameter,
    decisions_are_classes_or_numbers,
    dropout_acts_in_training_alone,
    another_seed_gives_other_weights,
    runs_in_a_stack_are_runs_alone,
    *SHARED_CHECKS,
)
