"""Deciding in bfloat16 gives float32's decisions, and asks float32 about few rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.vectorized.bfloat16_decisions import EVERY, SAMPLE_ROWS, UNSURE, CpuDecider, decide_most
from fusionkit.fit.vectorized.folding import Weights
from fusionkit.fit.vectorized.stack import Stacked
from fusionkit.specs import RunSpec

ROWS, HIDDEN = 2000, 32


def batch_of(states: Tensor) -> Batch:
    offsets = torch.arange(len(states) + 1)
    return Batch(states, offsets, torch.zeros(len(states), dtype=torch.int64), None, offsets)


def examples_of(states: Tensor, lengths: list[int]) -> Batch:
    offsets = torch.tensor([0, *accumulate(lengths)])
    assert offsets[-1] == len(states)
    return dataclasses.replace(batch_of(states), offsets=offsets, read_offsets=offsets)


def decide(score: Scorer, batch: Batch) -> Tensor:
    return CpuDecider(cast(Any, score)).decide(batch, batch.states.bfloat16())


class Scorer:
    """Scores of two runs by one linear map each; how many rows were scored in float32."""

    whole_examples = False

    def __init__(self, classes: int, scale: float) -> None:
        self.weights = scale * torch.randn(2, HIDDEN, classes)
        self.exact_rows = 0

    def scoring_weights(self, batch: Batch, rows: int = 0) -> Weights:
        return {"score": self.weights}

    def scores(self, weights: Weights, batches: Sequence[Batch], counts: Sequence[int] = ()) -> Tensor:
        (batch,) = batches
        if batch.states.dtype == torch.float32:
            self.exact_rows += len(batch.states)
        return batch.states[:, -1] @ weights["score"]

    def exact(self, batch: Batch) -> Tensor:
        return self.scores({"score": self.weights}, [batch]).argmax(-1)

    def narrow(self, batch: Batch) -> Tensor:
        batch = dataclasses.replace(batch, states=batch.states.bfloat16())
        return self.scores({"score": self.weights.bfloat16()}, [batch]).argmax(-1)


class Within(Scorer):
    """A row's scores are those of the sum over its example, and its own."""

    whole_examples = True

    def scores(self, weights: Weights, batches: Sequence[Batch], counts: Sequence[int] = ()) -> Tensor:
        own, lengths = super().scores(weights, batches), batches[0].offsets.diff()
        number = torch.arange(len(lengths)).repeat_interleave(lengths)
        sums = torch.zeros(len(own), len(lengths), own.shape[-1], dtype=own.dtype).index_add(1, number, own)
        return own + sums[:, number]


@pytest.mark.parametrize("classes", [2, 9])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_decisions_are_those_of_float32(classes: int, scale: float) -> None:
    torch.manual_seed(classes)
    score, batch = Scorer(classes, scale), batch_of(torch.randn(ROWS, 3, HIDDEN))
    exact = score.exact(batch)
    assert not torch.equal(score.narrow(batch), exact)  # bfloat16 alone decides otherwise somewhere
    score.exact_rows = 0
    assert torch.equal(decide(score, batch), exact)
    assert SAMPLE_ROWS < score.exact_rows < ROWS / 3  # of both runs together


def test_where_rows_depend_on_each_other_whole_examples_are_decided_again() -> None:
    torch.manual_seed(5)
    batch = examples_of(torch.randn(ROWS, 3, HIDDEN), [0, 7, 0, 30, 1, 150, *([4] * 453)])
    score = Within(9, 1.0)
    exact = score.exact(batch)
    assert not torch.equal(score.narrow(batch), exact)
    score.exact_rows = 0
    assert torch.equal(decide(score, batch), exact)
    assert SAMPLE_ROWS < score.exact_rows < 2 * ROWS


def test_rows_of_nan_are_decided_by_float32() -> None:
    torch.manual_seed(0)
    states = torch.randn(ROWS, 3, HIDDEN)
    states[7] = states[1500] = torch.nan
    score, batch = Scorer(4, 1.0), batch_of(states)
    assert torch.equal(decide(score, batch), score.exact(batch))


def test_ties_are_decided_by_float32() -> None:
    score, batch = Scorer(3, 1.0), batch_of(torch.randn(ROWS, 3, HIDDEN))
    score.weights[:, :, 2] = score.weights[:, :, 0]
    assert torch.equal(decide(score, batch), score.exact(batch))


def test_the_largest_error_seen_so_far_counts_for_all_batches() -> None:
    """Only one batch of eight has a sample of its own; where all rows are sure, that is all that float32 scores."""
    torch.manual_seed(3)
    score = Scorer(2, 1.0)
    score.weights[:, :, 1] = -score.weights[:, :, 0]
    sure = torch.ones(ROWS, 3, HIDDEN) * score.weights[0, :, 0].sign()
    score.weights = score.weights[:1]
    decider, batch = CpuDecider(cast(Any, score)), batch_of(sure)
    for _ in range(2 * EVERY):
        assert torch.equal(decider.decide(batch, sure.bfloat16()), torch.zeros(1, ROWS, dtype=torch.int64))
    assert score.exact_rows == 2 * SAMPLE_ROWS


@pytest.mark.parametrize("kind", [Scorer, Within])
def test_a_block_of_examples_without_rows_has_nothing_to_decide(kind: type[Scorer]) -> None:
    batch = examples_of(torch.zeros(0, 3, HIDDEN), [0, 0])
    found = decide(kind(4, 1.0), batch)
    assert found.shape == (2, 0)
    assert found.dtype == torch.int64


@pytest.mark.parametrize("fusion", ["last", "linear", "attention", "concat", "mlp-weights"])
def test_what_is_decided_in_one_shape_is_what_float32_decides(fusion: str) -> None:
    """As a GPU does it: an eighth of the rows again."""
    plain = RunSpec(store="s", task="tagging", label="x", fusion=fusion, head="tagger")
    specs = [dataclasses.replace(plain, init_seed=seed) for seed in range(3)]
    layers = 1 if fusion == "last" else 3
    stack = Stacked(specs, [build_model(spec, layers, HIDDEN, 5) for spec in specs])
    torch.manual_seed(3)
    batch = batch_of(torch.randn(ROWS, layers, HIDDEN))
    states = batch.states
    expected = stack.decide(batch)
    with torch.inference_mode():
        found = decide_most(stack, batch, states.bfloat16())
    assert found.shape == expected.shape == (3, ROWS)
    left = found == UNSURE
    assert float(left.float().mean()) < 0.05
    assert torch.equal(found[~left], expected[~left])


def test_more_unsure_rows_than_are_decided_again_are_told() -> None:
    """Of 80 rows the 40 closest are too close; those that are sure stay as they are."""
    exact = torch.zeros(1, 80, 2)
    exact[0, :, 0] = torch.cat([torch.full((40,), 1e-3), torch.ones(40)])
    wrong = exact.clone()
    wrong[0, ::2] += torch.tensor([0.0, 2e-3])

    class Close(Scorer):
        def scores(self, weights: Weights, batches: Sequence[Batch], counts: Sequence[int] = ()) -> Tensor:
            at = batches[0].states[:, 0, 0].long()
            return wrong if batches[0].states.dtype == torch.bfloat16 else exact[:, at]

    batch = batch_of(torch.arange(80.0).view(80, 1, 1))
    found = decide_most(cast(Any, Close(2, 1.0)), batch, batch.states.bfloat16())
    assert (found[0, 40:] == 0).all()
    assert int((found[0, :40] == UNSURE).sum()) == 30
    assert int((found[0, :40] == 0).sum()) == 10
