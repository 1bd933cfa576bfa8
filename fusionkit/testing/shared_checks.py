"""The contract that fusions and heads share: every check takes a case and raises AssertionError where it is broken."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from safetensors.torch import load, save
from torch import Tensor

from fusionkit.testing.expect import expect, expect_close

ROUNDED = {torch.float32: 1e-4, torch.bfloat16: 0.15}


class Case(Protocol):
    """A fusion or a head.

    ``across``: whether the output for a row may depend on other rows; ``across_flag``: the attribute of a class that
    declares it.
    ``fresh``: a module in float64 as training begins. ``build``: a module with random weights. ``batch``: states,
    targets and offsets; its first example has rows. ``examples``: for each example its rows, its rows of the output,
    and its offsets.
    """

    @property
    def across(self) -> bool: ...

    @property
    def across_flag(self) -> str: ...

    def fresh(self, *, seed: int = 0) -> Any: ...

    def build(self, *, seed: int = 0) -> Any: ...

    def batch(self) -> tuple[Tensor, Tensor, Tensor]: ...

    def examples(self, offsets: Tensor) -> list[tuple[slice, slice, Tensor]]: ...


def precisions_differ_by_rounding(case: Case) -> None:
    """float32 and bfloat16 give the same as float64, up to rounding."""
    module, (states, _, offsets) = case.fresh(), case.batch()
    exact = module(states, offsets).detach()
    for dtype, most in ROUNDED.items():
        found = module.to(dtype)(states.to(dtype), offsets).detach()
        expect(found.dtype == dtype, f"in {dtype} the output is {found.dtype}")
        far = float((found.double() - exact).norm() / exact.norm().clamp(min=1e-6)) if exact.numel() else 0.0
        expect(far <= most, f"in {dtype} the output is {far:.2g} of its size from float64; at most {most}")


def a_batch_is_its_examples_one_by_one(case: Case) -> None:
    """In values and gradients: the padding of shorter examples has no effect."""
    module, (states, _, offsets) = case.build(), case.batch()
    parts = case.examples(offsets)
    alone = [module(states[rows], bounds) for rows, _, bounds in parts]
    expect_close(module(states, offsets), torch.cat(alone), "a batch beside its examples one by one")
    learned, (rows, scored, bounds) = [*module.parameters(), states.requires_grad_()], parts[0]
    in_batch = module(states, offsets)[scored].square().sum()
    by_itself = module(states[rows], bounds).square().sum()
    found, expected = (torch.autograd.grad(loss, learned, allow_unused=True) for loss in (in_batch, by_itself))
    for one, other in zip(found, expected, strict=True):
        expect((one is None) == (other is None), "an example has other gradients in a batch than alone")
        if one is not None:
            expect_close(one, other, "the gradient of an example beside the one it has alone")


def the_order_of_examples_changes_nothing(case: Case) -> None:
    """Examples in another order give the same rows in that order."""
    module, (states, _, offsets) = case.build(), case.batch()
    output, parts = module(states, offsets), case.examples(offsets)[::-1]
    lengths = torch.cat([bounds.diff() for _, _, bounds in parts])
    turned = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    found = module(torch.cat([states[rows] for rows, _, _ in parts]), turned)
    expect_close(found, torch.cat([output[scored] for _, scored, _ in parts]), "examples in another order")


def no_example_sees_another(case: Case) -> None:
    """Not even one that is NaN; and a row sees its neighbours only if the class declares it."""
    module, (states, _, offsets) = case.build(), case.batch()
    rows, scored, _ = case.examples(offsets)[0]
    before, others = module(states, offsets)[scored].detach(), states.clone()
    others[rows.stop - 1] += 1
    moved = not torch.allclose(module(others, offsets)[scored][0], before[0], rtol=1e-11, atol=1e-11)
    if rows.stop - rows.start > 1:
        expect(case.across or not moved, f"a row sees its neighbours: say {case.across_flag}")
    expect(moved or not case.across, f"no row sees its neighbours: leave {case.across_flag} out")
    kept = rows if case.across else slice(rows.start, rows.start + 1)
    others = torch.full_like(states, torch.nan)
    others[kept] = states[kept]
    found = module(others, offsets)[scored]
    expect_close(found if case.across else found[:1], before if case.across else before[:1], "beside rows that are NaN")


def a_seed_gives_the_same_weights_again(case: Case) -> None:
    """All random numbers come from torch's own generator."""
    first, again = (case.fresh(seed=3).state_dict() for _ in range(2))
    expect(first.keys() == again.keys(), "built twice, it has other weights")
    expect(all(torch.equal(first[key], again[key]) for key in first), "one seed gives different weights")


def weights_survive_a_safetensors_file(case: Case) -> None:
    """The output depends only on the weights that a run keeps."""
    module, other, (states, _, offsets) = case.build(seed=5), case.build(seed=6), case.batch()
    other.load_state_dict(load(save({name: value.contiguous() for name, value in module.state_dict().items()})))
    found, expected = other(states, offsets), module(states, offsets)
    expect(torch.equal(found, expected), "with the same weights from a file the output is another")
    if hasattr(module, "decode"):
        decided = torch.equal(other.decode(found, offsets), module.decode(expected, offsets))
        expect(decided, "its weights alone do not bring the decisions back")


SHARED_CHECKS = (
    precisions_differ_by_rounding,
    a_batch_is_its_examples_one_by_one,
    the_order_of_examples_changes_nothing,
    no_example_sees_another,
    a_seed_gives_the_same_weights_again,
    weights_survive_a_safetensors_file,
)
