"""A fusion folded into the head: the same scores and gradients, where counting multiplications says that it pays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.vectorized.bfloat16_decisions import CpuDecider
from fusionkit.fit.vectorized.folding import Folding
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.fit.vectorized.stack import stack_of as of_one
from fusionkit.fusions import FUSIONS, fusion_class, named
from fusionkit.fusions.concat import Concat
from fusionkit.specs import RunSpec

RUNS, LAYERS, HIDDEN, CLASSES = 3, 5, 24, 4
FOLDED = ("concat", "concat-affine")


def stack_of(fusion: str, head: str = "linear-tagger", **fields: float | str) -> Stacked:
    spec = RunSpec(store="s", task="t", label="l", fusion=fusion, head=head, **fields)  # type: ignore[arg-type]
    specs = [replace(spec, init_seed=seed) for seed in range(RUNS)]
    return Stacked(specs, [build_model(one, LAYERS, HIDDEN, CLASSES) for one in specs])


def apart(stack: Stacked) -> Stacked:
    stack._folding = None
    return stack


def batch_of(rows: int, read: Tensor | None = None) -> Batch:
    random = torch.Generator().manual_seed(rows)
    states = torch.randn(rows, LAYERS, HIDDEN, generator=random)
    units = rows if read is None else len(read)
    offsets = torch.arange(rows + 1)
    own = offsets if read is None else torch.searchsorted(read, offsets)
    return Batch(states, offsets, torch.randint(CLASSES, (units,), generator=random), read, own)


def products(work: Callable[[], object]) -> int:
    """Multiplications of a piece of work, as PyTorch counts them; one is counted as two operations."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops()) // 2


@pytest.mark.parametrize("fusion", FOLDED)
@pytest.mark.parametrize("head", ["linear-tagger", "tagger", "crf"])
def test_folded_weights_score_what_both_parts_do(fusion: str, head: str) -> None:
    stack, batch = stack_of(fusion, head), batch_of(50)
    folding = stack._folding
    assert folding is not None
    weights = {name: w.double() if w.is_floating_point() else w for name, w in stack._weights().items()}
    batch = replace(batch, states=batch.states.double())
    folded = folding.folded(weights)
    assert not any(name.startswith("fusion.") for name in folded)
    found = stack._call(folded, [batch], "score")
    expected = stack._call(weights, [batch], "score")
    assert found.shape == (RUNS, 50, CLASSES)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fusion", FOLDED)
@pytest.mark.parametrize("head", ["linear-tagger", "tagger"])
@pytest.mark.parametrize("rows", [1, 2, 5, 30, 300, 3000])
def test_what_is_saved_is_what_is_not_multiplied(fusion: str, head: str, rows: int) -> None:
    """Of states that get no gradient, as a step has them."""
    stack, batch = stack_of(fusion, head), batch_of(rows)
    folding, weights = stack._folding, stack._weights()
    assert folding is not None
    learned = stack._trainable()

    def learn(fold: bool) -> None:
        losses = stack._call(folding.folded(weights) if fold else weights, [batch], "loss")
        torch.autograd.grad(losses.sum(), learned)

    @torch.no_grad()
    def score(fold: bool) -> None:
        stack._call(folding.folded(weights) if fold else weights, [batch], "score")

    # Its biases are moved through the head's first map: k m of them, there and back, that no row is counted for.
    shift = RUNS * folding.outputs * folding.between
    for work, learns, moved in ((score, False, shift), (learn, True, 3 * shift)):
        saved = products(partial(work, False)) - products(partial(work, True)) + moved
        counted = RUNS * folding.saves(rows, learns=learns)
        assert counted == max(saved, 0)


def test_few_tags_fold_and_few_rows_do_not() -> None:
    """Where the line runs, counted by hand: a = 60, m = 12, k = 2."""
    spec = RunSpec(store="s", task="t", label="l", fusion="concat-affine", head="linear-tagger")
    folding = Folding.of(build_model(spec, 5, 12, 2))
    assert folding is not None
    assert (folding.inputs, folding.between, folding.outputs) == (60, 12, 2)
    assert folding.saves(10, learns=False) == 10 * 12 * (60 + 2) - 60 * 2 * (10 + 12)
    assert folding.saves(10, learns=True) == 10 * 12 * (120 + 6) - 60 * 2 * (20 + 36)
    assert [folding.saves(rows, learns=False) > 0 for rows in (0, 1, 2, 3, 100)] == [False, False, False, True, True]


@pytest.mark.parametrize("fusion", [*sorted(set(FUSIONS) - set(FOLDED)), "concat:first=yes"])
def test_what_is_no_linear_map_is_not_folded(fusion: str) -> None:
    spelled = re.sub(":[a-z]+$", ":1", named(fusion, fusion_class(fusion))) if ":" not in fusion else fusion
    spec = RunSpec(store="s", task="t", label="l", fusion=spelled, head="linear-tagger")
    assert Folding.of(build_model(spec, 1 if fusion in ("last", "layer", "extra-layers") else 3, 12, 2)) is None


def test_what_is_pooled_or_compared_is_not_folded() -> None:
    spec = RunSpec(store="s", task="t", label="l", fusion="concat", head="classifier")
    assert Folding.of(build_model(replace(spec, pool="cls"), 3, 12, 2)) is not None
    assert Folding.of(build_model(replace(spec, pool="mean"), 3, 12, 2)) is None
    assert Folding.of(build_model(spec, 3, 12, 2, sides=2)) is None


def test_what_inherits_from_a_linear_map_is_not_folded() -> None:
    """It may do more than that."""
    model = build_model(RunSpec(store="s", task="t", label="l", fusion="concat", head="linear-tagger"), 3, 12, 2)
    model.fusion = TanhConcat(3, 12)
    assert Folding.of(model) is None


class TanhConcat(Concat):
    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        return super().forward(states).tanh()


def test_a_head_of_ones_own_is_not_folded() -> None:
    model = build_model(RunSpec(store="s", task="t", label="l", fusion="concat", head="linear-tagger"), 3, 12, 2)
    model.head = Bilinear()  # type: ignore[assignment]
    assert Folding.of(model) is None


class Bilinear(nn.Module):
    """What a head must have, and no chain of layers by the name of ``score``."""

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        return states[:, :2] * states[:, 2:4]


@pytest.mark.parametrize("freeze", ["fusion", "head"])
def test_a_step_with_a_frozen_part_is_not_folded(freeze: str) -> None:
    """One product each way less than is counted: folded it may multiply more."""
    model = build_model(RunSpec(store="s", task="t", label="l", fusion="concat", head="linear-tagger"), 3, 12, 2)
    model.get_submodule(freeze).requires_grad_(requires_grad=False)
    folding = Folding.of(model)
    assert folding is not None
    assert folding.saves(1000, learns=True) == 0 < folding.saves(1000, learns=False)


def test_one_run_is_stacked_where_that_folds_it() -> None:
    for head, dropout, folds in (("linear-tagger", 0.0, True), ("linear-tagger", 0.1, True), ("tagger", 0.0, False)):
        spec = RunSpec(store="s", task="t", label="l", fusion="concat", head=head, dropout=dropout)
        assert isinstance(of_one([spec], [build_model(spec, LAYERS, HIDDEN, CLASSES)]), Stacked) is folds


def test_a_step_folds_only_where_nothing_drops_out_between() -> None:
    wet, dry = (stack_of("concat-affine", dropout=share) for share in (0.3, 0.0))
    batch = batch_of(200)
    took = []
    for stack in (wet, apart(stack_of("concat-affine", dropout=0.3)), dry):
        took.append(products(partial(stack.step, [batch], [1e-3] * RUNS)))
    assert took[0] == took[1] > 2 * took[2]
    # Scoring drops nothing out: all of it is folded.
    assert products(lambda: wet.decide(batch, 200)) == products(lambda: dry.decide(batch, 200))


def test_a_head_that_reads_some_rows_is_not_folded() -> None:
    batch = batch_of(40, torch.arange(0, 40, 2))
    expected = apart(stack_of("concat")).decide(batch)
    found = stack_of("concat")
    assert torch.equal(found.decide(batch, 1 << 20), expected)
    assert found._folded is None
    found.step([batch], [1e-3] * RUNS)


@pytest.mark.parametrize("fusion", FOLDED)
@pytest.mark.parametrize("narrow", [False, True])
def test_decisions_follow_the_weights(fusion: str, narrow: bool) -> None:
    """Folded weights are kept from block to block, and made anew after a step and for other runs."""
    folds, plain, batch = stack_of(fusion), apart(stack_of(fusion)), batch_of(600)

    def decided(stack: Stacked) -> Tensor:
        if narrow:
            return CpuDecider(stack, 600).decide(batch, batch.states.bfloat16())
        return stack.decide(batch, 600)

    before = decided(folds)
    assert torch.equal(before, decided(plain))
    assert folds._folded is not None
    for stack in (folds, plain):
        for _ in range(3):
            stack.step([batch], [1e-2] * RUNS)
    after = decided(folds)
    assert not torch.equal(after, before)
    assert torch.equal(after, decided(plain))
    folds.keep([2, 0])
    assert torch.equal(decided(folds), after[[2, 0]])
