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
from fusionkit.testing.expect import (
    ROUNDED,
    STEPS,
    expect,
    expect_alone_and_stacked,
    expect_close,
    expect_rounding,
    path_of,
    through_a_file,
)

WIDTH, CLASSES = 5, 3
SIZES = ((256, 2), (384, 9), (1024, 121))  # where parameters are counted: a width and a number of classes
PRECISE: Any = {"rtol": 1e-11, "atol": 1e-12}
FLOAT32: Any = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class HeadCase:
    """A head, and what is claimed of it.

    Attributes:
        name: as on the command line. parameters: how many numbers it learns, of a width and a number of classes.
        formula: its scores again, in NumPy, of an example's one or two sequences ``[rows, width]`` and the weights
            ``w``. loss, decode: of scores, targets (not of decode), offsets and weights. weigh: what a batch's loss
            weighs an example by, of its number of rows.
    """

    name: str
    parameters: Callable[[int, int], int] | None = None
    formula: Callable[..., Any] | None = None
    loss: Callable[..., float] | None = None
    decode: Callable[..., list[Any]] | None = None
    weigh: Callable[[int], int] | None = None

    @property
    def sides(self) -> int:
        """Sequences an example has."""
        return head_entry(self.name).sequences or 1

    @property
    def by_example(self) -> bool:
        """Whether a row of scores is of a whole example."""
        return head_entry(self.name).sequences is not None

    @property
    def numeric(self) -> bool:
        """Whether it gives one number, not a score a class."""
        return gives_numbers(self.name)

    @property
    def several(self) -> bool:
        """Whether a row may have any number of classes, each decided alone."""
        return suits(self.name, "multi-label")

    @property
    def across(self) -> bool:
        """Whether scores may depend on the rows around."""
        modules = build_head(self.name, WIDTH, CLASSES, 0.0).modules()
        return any(getattr(module, "across_rows", False) for module in modules)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each sequence of a batch."""
        if self.sides == 2:
            return (3, 1, 0, 2, 4, 0, 2, 5, 0, 0)
        pooled = not self.by_example and "tagging" not in head_entry(self.name).tasks
        return (1,) * 6 if pooled else (3, 1, 0, 5, 2)

    def build(self, dropout: float = 0.0, seed: int = 0) -> Any:
        """In float64, with fresh weights."""
        torch.manual_seed(seed)
        return build_head(self.name, WIDTH, CLASSES, dropout).double()

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
        """Of each example its rows, its rows of scores, and its own offsets."""
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
    """Try all that a head must keep.

    Args:
        head: a class, or a text as on the command line. parameters, formula, loss, decode: as of :class:`HeadCase`;
            what is not given is not compared.

    Raises:
        AssertionError: with what was expected. UsageError: it is no head at all.
    """
    with torch.random.fork_rng(devices=[]):
        for check in HEAD_CHECKS:
            check(HeadCase(path_of(head), parameters, formula, loss, decode))


def weights_of(head: Any) -> dict[str, Any]:
    """Parameters as arrays."""
    return {name: value.detach().numpy() for name, value in head.named_parameters()}


def scores_have_a_row_each(case: HeadCase) -> None:
    """A score a class, or one number, for each row or each example; the states stay what they were."""
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
            expect_close(scores, np.concatenate(found), f"scores of rows {lengths}", PRECISE)


def parameters_are_as_many_as_declared(case: HeadCase) -> None:
    """And all that a head knows is learned: it has no buffers that are kept."""
    for width, classes in SIZES:
        with torch.device("meta"):
            head = build_head(case.name, width, classes, 0.1)
        found = sum(p.numel() for p in head.parameters() if p.requires_grad)
        declared = found if case.parameters is None else case.parameters(width, classes)
        expect(found == declared, f"{found:,} parameters at {width} × {classes}, declared {declared:,}")


def loss_is_one_number(case: HeadCase) -> None:
    """Of all rows; a batch's is the examples' own, weighed as is claimed."""
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
    """A batch may hold only examples without words: no NaN comes of it."""
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
            expect(not any(bool(grad.any()) for grad in grads), "no rows move the weights")
        expected = (0, CLASSES) if case.several else (count if case.by_example else 0,)
        decided = head.decode(scores, offsets)
        expect(decided.shape == expected, f"decided {tuple(decided.shape)} of no rows, expected {expected}")


def gradients_reach_every_parameter(case: HeadCase) -> None:
    """And are those of finite differences."""
    head, (states, targets, offsets) = case.build(), case.batch()
    head.loss(head(states, offsets), targets, offsets).backward()
    for name, parameter in head.named_parameters():
        expect(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), f"no gradient reaches {name}")
        expect(bool(torch.isfinite(parameter.grad).all()), f"the gradient of {name} is not finite")

    def loss(states: Tensor, *weights: Tensor) -> Tensor:
        return head.loss(head(states, offsets), targets, offsets)  # type: ignore[no-any-return]

    # gradcheck moves the weights in place; fast: along one random direction of each tensor.
    right = torch.autograd.gradcheck(loss, (states.requires_grad_(), *head.parameters()), fast_mode=True)
    expect(right, "the gradients are not those of finite differences")


def decisions_are_classes_or_numbers(case: HeadCase) -> None:
    """Of the scores alone, the same again; probabilities, where there are any, sum to one.

    Of any number of classes each row's probabilities are decided, from 0 to 1 each.
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
        expect(bool(((first >= 0) & (first < CLASSES)).all()), "it decides for classes that there are none of")
    if case.decode is not None:
        expected = case.decode(scores.detach().numpy(), offsets.numpy(), weights_of(head))
        expect_close(first, expected, "the decisions", PRECISE)
    if (probabilities := getattr(head, "probabilities", None)) is not None:
        found = probabilities(scores)
        expect(found.shape == scores.shape, f"probabilities {tuple(found.shape)}, expected {tuple(scores.shape)}")
        if case.several:
            return
        expect_close(found.sum(-1), torch.ones(len(scores), dtype=torch.float64), "the sum of probabilities")


def no_example_sees_another(case: HeadCase) -> None:
    """Nor a row its neighbours, unless a module of the head says ``across_rows = True``."""
    head, (states, _, offsets) = case.build(), case.batch()
    rows, scored, _ = case.examples(offsets)[0]
    kept = rows if case.across else slice(0, 1)
    read = scored if case.across else slice(0, 1)
    before = head(states, offsets)[read].detach()
    others = torch.ones(len(states), dtype=torch.bool)
    others[kept] = False
    states[others] = torch.nan
    expect_close(head(states, offsets)[read], before, "scores beside other rows that are NaN", PRECISE)
    if case.across:
        states[rows.stop - 1] += 1
        moved = not bool(torch.isclose(head(states, offsets)[read][0], before[0]).any())
        expect(moved, "no row sees its neighbours: leave across_rows out")


def a_batch_is_its_examples_one_by_one(case: HeadCase) -> None:
    """In any order; in float32, as runs are."""
    head, (states, _, offsets) = case.build().float(), case.batch()
    states, parts = states.float(), case.examples(offsets)
    alone = [head(states[rows], bounds) for rows, _, bounds in parts]
    expect_close(head(states, offsets), torch.cat(alone), "a batch beside its examples one by one", FLOAT32)
    lengths = torch.cat([bounds.diff() for _, _, bounds in reversed(parts)])
    turned = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    found = head(torch.cat([states[rows] for rows, _, _ in reversed(parts)]), turned)
    expect_close(found, torch.cat(alone[::-1]), "examples in another order", FLOAT32)


def precisions_differ_by_rounding(case: HeadCase) -> None:
    """float32 and bfloat16 give what float64 gives, but for their rounding."""
    head, (states, _, offsets) = case.build(), case.batch()
    exact = head(states, offsets)
    for dtype in ROUNDED:
        expect_rounding(exact, head.to(dtype)(states.to(dtype), offsets), dtype, "the head")


def dropout_acts_in_training_alone(case: HeadCase) -> None:
    """``--dropout`` is the head's to use; without it, and in evaluation, nothing is random."""
    dropping, plain, (states, _, offsets) = case.build(dropout=0.5), case.build(), case.batch()
    expect(not torch.equal(dropping(states, offsets), dropping(states, offsets)), "dropout does not act in training")
    expect(torch.equal(plain(states, offsets), plain(states, offsets)), "scores are random without dropout")
    expect(torch.equal(dropping.eval()(states, offsets), plain(states, offsets)), "dropout acts in evaluation")


def a_seed_gives_the_same_weights_and_another_seed_others(case: HeadCase) -> None:
    """All that is drawn is drawn from torch's own generator."""
    first, again, other = (weights_of(case.build(seed=seed)) for seed in (3, 3, 4))
    expect(first.keys() == again.keys() == other.keys(), "built twice, it has other weights")
    expect(all(np.array_equal(first[key], again[key]) for key in first), "one seed gives different weights")
    expect(not all(np.array_equal(first[key], other[key]) for key in first), "another seed gives the same weights")


def weights_survive_a_safetensors_file(case: HeadCase) -> None:
    """What a run keeps is all that scores and decisions depend on."""
    head, other, (states, _, offsets) = case.build(seed=5), case.build(seed=6), case.batch()
    other.load_state_dict(through_a_file(head))
    scores = head(states, offsets)
    expect(torch.equal(scores, other(states, offsets)), "its weights alone do not bring the scores back")
    expect(torch.equal(head.decode(scores, offsets), other.decode(scores, offsets)), "nor the decisions")


def runs_in_a_stack_are_runs_alone(case: HeadCase) -> None:
    """Trained side by side, by ``torch.func.vmap`` where that can be, runs end with the weights of each alone."""
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
    no_example_sees_another,
    a_batch_is_its_examples_one_by_one,
    precisions_differ_by_rounding,
    dropout_acts_in_training_alone,
    a_seed_gives_the_same_weights_and_another_seed_others,
    weights_survive_a_safetensors_file,
    runs_in_a_stack_are_runs_alone,
)
