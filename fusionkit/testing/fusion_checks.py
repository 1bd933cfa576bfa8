"""The contract of fusions: every check takes a case and raises AssertionError where it is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.fusions import build_fusion, fusion_layers, fusion_name, is_affine, sees_examples
from fusionkit.specs import RunSpec
from fusionkit.testing.expect import STEPS, expect, expect_alone_and_stacked, expect_close, path_of
from fusionkit.testing.shared_checks import SHARED_CHECKS

LAYERS, HIDDEN, ENCODER = 5, 8, 13  # layers that a fusion reads here; their width; layers of a 12-layer encoder
OFFSETS = torch.tensor([0, 3, 3, 8, 9])  # the second example has no rows
SIZES = ((ENCODER, HIDDEN), (25, 1024))  # encoders for which parameters are counted: number of layers, and their width
Formula = Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class FusionCase:
    """A fusion, and the claims about it.

    Attributes:
        name: with its options, as on the command line. formula: the same formula in NumPy: the states of one example
            ``[…, layers, hidden]`` and the weights by name → ``[…, width]``. parameters: its number of parameters, from
            the number of layers and their width. layer_weights: their formula, ``[…, layers]``. idle: parameters that
            no loss can move.
    """

    name: str
    formula: Formula | None = None
    parameters: Callable[[int, int], int] | None = None
    layer_weights: Formula | None = None
    idle: tuple[str, ...] = ()

    across_flag = "whole_examples = True"

    @property
    def across(self) -> bool:
        return sees_examples(self.name)

    def fresh(self, layers: int = LAYERS, hidden: int = HIDDEN, *, seed: int = 0) -> Any:
        """The fusion in float64 with its initial weights, without dropout: only the comparison of stacks has that."""
        torch.manual_seed(seed)
        fusion: Any = build_fusion(self.name, layers, hidden)
        return fusion.double().eval()

    def build(self, layers: int = LAYERS, hidden: int = HIDDEN, *, seed: int = 0, scale: float = 1.0) -> Any:
        """The fusion in float64 with random weights instead of its initial ones; ``scale`` is their deviation."""
        fusion, generator = self.fresh(layers, hidden, seed=seed), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weights in fusion.parameters():
                weights.copy_(scale * torch.randn(weights.shape, generator=generator))
        return fusion

    def batch(self, *, layers: int = LAYERS, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """States ``[9, layers, hidden]``, one of three classes per row, :data:`OFFSETS`."""
        targets = torch.randint(3, (9,), generator=torch.Generator().manual_seed(seed))
        return states_of(9, layers=layers, seed=seed), targets, OFFSETS

    def examples(self, offsets: Tensor) -> list[tuple[slice, slice, Tensor]]:
        bounds = itertools.pairwise(offsets.tolist())
        return [(slice(a, b), slice(a, b), torch.tensor([0, b - a])) for a, b in bounds]


def check_fusion(
    fusion: type | str,
    *,
    parameters: Callable[[int, int], int] | None = None,
    formula: Formula | None = None,
    layer_weights: Formula | None = None,
    idle: tuple[str, ...] = (),
) -> None:
    """Run every check on a fusion: a class with its default options, or a text with options, ``mylab.mix:Mine:8``.

    Args:
        parameters, formula, layer_weights, idle: as in :class:`FusionCase`; claims that are not given are not compared.

    Raises:
        AssertionError: with what was expected. UsageError: the object is not a fusion.
    """
    with torch.random.fork_rng(devices=[]):
        for check in FUSION_CHECKS:
            check(FusionCase(path_of(fusion), formula, parameters, layer_weights, idle))


def states_of(*leading: int, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 1) -> Tensor:
    """Random float64 states ``[…, layers, hidden]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, layers, hidden, generator=generator, dtype=torch.float64)


def weights_of(fusion: Any) -> dict[str, Any]:
    return {name: value.detach().numpy() for name, value in fusion.state_dict().items()}


def name_is_spelled_one_way(case: FusionCase) -> None:
    """Spelling a canonical name again does not change it."""
    expect(fusion_name(fusion_name(case.name)) == fusion_name(case.name), f"{case.name} is spelled in two ways")


def layers_are_some_of_those_offered(case: FusionCase) -> None:
    """Default layers lie in the encoder, in ascending order; where layers are chosen, no others are read."""
    every = tuple(range(ENCODER))
    read = fusion_layers(case.name, every, ENCODER)
    expect(list(read) == sorted(set(read)), f"the layers {read} are not in ascending order")
    chosen = tuple(sorted({*read[::2], *read[-1:]}))
    expect(
        set(fusion_layers(case.name, every, ENCODER, chosen)) <= set(chosen),
        f"of the layers {chosen} others are read: {fusion_layers(case.name, every, ENCODER, chosen)}",
    )


def output_has_its_width_for_any_number_of_layers(case: FusionCase) -> None:
    """``[rows, layers, hidden]`` → ``[rows, width]``, and the states are not changed."""
    for layers in (1, 2, LAYERS):
        fusion, states = case.build(layers), states_of(9, layers=layers)
        before = states.clone()
        found = fusion(states, OFFSETS)
        expect(found.shape == (9, fusion.width), f"shape {tuple(found.shape)}, expected (9, {fusion.width})")
        expect(torch.equal(states, before), "the fusion changes the states that it reads")
        if case.formula is not None:
            for rows, _, bounds in case.examples(OFFSETS):
                if bounds[-1]:
                    expected = case.formula(states[rows].numpy(), weights_of(fusion))
                    expect_close(found[rows], expected, f"over {layers} layers")


def leading_shapes_are_kept(case: FusionCase) -> None:
    """Rows may have any leading shape, without offsets; a fusion of whole examples asks for the offsets."""
    fusion = case.build()
    if case.across:
        try:
            fusion(states_of(9))
        except TypeError as error:
            expect("offsets" in str(error), f"without offsets: {error}")
            return
        raise AssertionError("a fusion of whole examples works without their offsets")
    rows = states_of(2 * 3)
    flat = fusion(rows)
    for leading in [(), (1,), (0,), (2, 3), (2, 1, 3)]:
        count = int(torch.tensor(leading).prod()) if leading else 1
        found = fusion(rows[:count].reshape(*leading, LAYERS, HIDDEN))
        expect_close(found, flat[:count].reshape(*leading, fusion.width).detach(), f"leading shape {leading}")


def parameters_are_as_many_as_declared(case: FusionCase) -> None:
    """Counted over a small encoder and over one like BERT large."""
    for encoder, hidden in SIZES:
        layers = len(fusion_layers(case.name, tuple(range(encoder)), encoder))
        with torch.device("meta"):
            fusion = build_fusion(case.name, layers, hidden)
        found = sum(p.numel() for p in fusion.parameters() if p.requires_grad)
        declared = found if case.parameters is None else case.parameters(layers, hidden)
        expect(found == declared, f"{found:,} parameters over {layers} × {hidden}, declared {declared:,}")


def gradients_are_those_of_finite_differences(case: FusionCase) -> None:
    """With respect to states and weights."""
    fusion, offsets = case.build(3, HIDDEN // 2, seed=2), torch.tensor([0, 2, 2, 3])
    states = states_of(3, layers=3, hidden=HIDDEN // 2, seed=2).requires_grad_()

    def output(states: Tensor, *weights: Tensor) -> Tensor:
        return fusion(states, offsets)[..., :4]  # type: ignore[no-any-return]  # enough of a wide output

    # gradcheck perturbs the weights in place.
    right = torch.autograd.gradcheck(output, (states, *fusion.parameters()))
    expect(right, "the gradients are not those of finite differences")


def every_parameter_gets_a_gradient(case: FusionCase) -> None:
    """Except for those that are declared idle."""
    fusion = case.build(scale=0.3)  # saturated sigmoids let no gradient through
    parameters = dict(fusion.named_parameters())
    loss = fusion(states_of(9), OFFSETS).square().sum()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True) if parameters else ()
    for name, gradient in zip(parameters, found, strict=True):
        size = 0.0 if gradient is None else float(gradient.abs().max())
        expect(name in case.idle or size > 1e-6, f"no gradient reaches {name}")
        expect(name not in case.idle or size < 1e-9, f"{name} is said to be idle, and has a gradient")


def a_batch_without_rows_is_fused_to_none(case: FusionCase) -> None:
    """This happens where all examples are empty."""
    fusion = case.build()
    found = fusion(states_of(0), torch.tensor([0, 0, 0]))
    expect(found.shape == (0, fusion.width), f"no rows gave {tuple(found.shape)}, expected (0, {fusion.width})")


def the_order_of_states_in_memory_does_not_matter(case: FusionCase) -> None:
    """States of some layers, and with transposed axes, are views."""
    fusion, states = case.build(), states_of(9)
    expected = fusion(states, OFFSETS)
    for view in (
        states.transpose(0, 1).contiguous().transpose(0, 1),
        states.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    ):
        expect_close(fusion(view, OFFSETS), expected, "states in another order in memory")


def runs_in_a_stack_are_runs_alone(case: FusionCase) -> None:
    """Runs trained together, by ``torch.func.vmap`` where possible, end with the same weights as each alone."""
    spec = RunSpec(store="", task="tagging", label="", fusion=case.name, head="linear-tagger")
    layers, batches = len(fusion_layers(case.name, tuple(range(ENCODER)), ENCODER)), []
    for step in range(STEPS):
        states, targets, offsets = case.batch(layers=layers, seed=step)
        batches.append(Batch(states, offsets, targets, None, offsets))
    expect_alone_and_stacked(spec, (layers, HIDDEN, 3, 1), batches)


def the_mean_may_come_first_where_that_is_said(case: FusionCase) -> None:
    """``is_affine = True``: the fusion of a mean over rows is the mean of their fusions."""
    if is_affine(case.name):
        fusion, states = case.build(), states_of(9)
        mean = fusion(states.mean(0, keepdim=True), torch.tensor([0, 1]))
        expect_close(mean[0], fusion(states, OFFSETS).mean(0), "the fusion of a mean")


def layer_weights_sum_to_one(case: FusionCase) -> None:
    """One weight per layer for each row, or None."""
    fusion, states = case.build(), states_of(9)
    weights = getattr(fusion, "layer_weights", lambda states: None)(states)
    expect(weights is not None or case.layer_weights is None, "there are no layer weights")
    if weights is None:
        return
    expect(weights.shape == (9, LAYERS), f"layer weights {tuple(weights.shape)}, expected (9, {LAYERS})")
    expect_close(weights.sum(-1), torch.ones(9, dtype=torch.float64), "the sum of a row's layer weights")
    if case.layer_weights is not None:
        expect_close(weights, case.layer_weights(states.numpy(), weights_of(fusion)), "layer weights")


FUSION_CHECKS: tuple[Callable[[FusionCase], None], ...] = (
    name_is_spelled_one_way,
    layers_are_some_of_those_offered,
    output_has_its_width_for_any_number_of_layers,
    leading_shapes_are_kept,
    parameters_are_as_many_as_declared,
    gradients_are_those_of_finite_differences,
    every_parameter_gets_a_gradient,
    a_batch_without_rows_is_fused_to_none,
    the_order_of_states_in_memory_does_not_matter,
    runs_in_a_stack_are_runs_alone,
    the_mean_may_come_first_where_that_is_said,
    layer_weights_sum_to_one,
    *SHARED_CHECKS,
)
