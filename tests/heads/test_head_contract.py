"""What every head of the table keeps, against formulas written again in NumPy."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from fusionkit.errors import UsageError
from fusionkit.heads import HEADS, build_head

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Weights = dict[str, Array]

WIDTH, CLASSES = 5, 3


def feed_forward(x: Array, w: Weights) -> Array:
    first = np.maximum(x @ w["score.0.weight"].T + w["score.0.bias"], 0)
    second = np.maximum(first @ w["score.3.weight"].T + w["score.3.bias"], 0)
    return np.asarray(second @ w["score.6.weight"].T + w["score.6.bias"])


def linear(x: Array, w: Weights) -> Array:
    return np.asarray(x @ w["score.1.weight"].T + w["score.1.bias"])


def cross_entropy(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float(-log_p[np.arange(len(targets)), targets].mean())


def squared_error(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    return float(((scores[:, 0] - targets) ** 2).sum() / len(targets))


def paths(scores: Array, w: Weights) -> dict[tuple[int, ...], float]:
    """The score of every tag sequence of one example."""
    return {
        tags: w["start"][tags[0]]
        + sum(row[tag] for row, tag in zip(scores, tags, strict=True))
        + sum(w["transitions"][pair] for pair in itertools.pairwise(tags))
        + w["end"][tags[-1]]
        for tags in itertools.product(range(scores.shape[1]), repeat=len(scores))
    }


def crf_loss(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    losses = []
    for start, end in itertools.pairwise(offsets):
        if end > start:
            of = paths(scores[start:end], w)
            losses.append(np.log(sum(np.exp(s) for s in of.values())) - of[tuple(int(t) for t in targets[start:end])])
    return float(np.mean(losses))


def crf_decode(scores: Array, offsets: Ints, w: Weights) -> list[int]:
    tags: list[int] = []
    for start, end in itertools.pairwise(offsets):
        if end > start:
            of = paths(scores[start:end], w)
            best: tuple[int, ...] = max(of, key=of.__getitem__)
            tags.extend(best)
    return tags


def feed_forward_count(width: int, classes: int) -> int:
    return (width * 256 + 256) + (256 * 256 + 256) + (256 * classes + classes)


SCORES: dict[str, Callable[[Array, Weights], Array]] = {
    "classifier": feed_forward,
    "tagger": feed_forward,
    "linear-tagger": linear,
    "crf": feed_forward,
    "regressor": feed_forward,
}
LOSSES: dict[str, Callable[[Array, Ints, Ints, Weights], float]] = {
    "classifier": cross_entropy,
    "tagger": cross_entropy,
    "linear-tagger": cross_entropy,
    "crf": crf_loss,
    "regressor": squared_error,
}
DECODES: dict[str, Callable[[Array, Ints, Weights], list[int]]] = {
    "classifier": lambda scores, offsets, w: scores.argmax(1).tolist(),
    "tagger": lambda scores, offsets, w: scores.argmax(1).tolist(),
    "linear-tagger": lambda scores, offsets, w: scores.argmax(1).tolist(),
    "crf": crf_decode,
    "regressor": lambda scores, offsets, w: scores[:, 0].tolist(),
}
COUNTS: dict[str, Callable[[int, int], int]] = {
    "classifier": feed_forward_count,
    "tagger": feed_forward_count,
    "linear-tagger": lambda width, classes: width * classes + classes,
    "crf": lambda width, classes: feed_forward_count(width, classes) + classes**2 + 2 * classes,
    "regressor": lambda width, classes: feed_forward_count(width, 1),
}
NUMBERS = ("regressor",)  # heads that give one number a row; the others give a score a class
# Rows of each example in a batch: a sentence's head has one an example, a tagger its words, which may be none.
LENGTHS = {name: [1] * 6 if name in ("classifier", "regressor") else [3, 1, 0, 5, 2] for name in SCORES}
# What a batch's loss weighs its examples' losses by.
WEIGH: dict[str, Callable[[int], int]] = {
    "classifier": lambda rows: 1,
    "tagger": lambda rows: rows,
    "linear-tagger": lambda rows: rows,
    "crf": lambda rows: 1 if rows else 0,
    "regressor": lambda rows: 1,
}

every_head = pytest.mark.parametrize("name", list(HEADS))


def built(name: str, dropout: float = 0.0, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_head(name, WIDTH, CLASSES, dropout).double()


def batch_of(name: str, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """States ``[rows, width]``, targets ``[rows]``, offsets ``[examples + 1]``."""
    rows = sum(LENGTHS[name])
    generator = torch.Generator().manual_seed(seed)
    states = 3 * torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (rows,), generator=generator)
    if name in NUMBERS:
        targets = 5 * torch.rand(rows, generator=generator, dtype=torch.float64)
    return states, targets, torch.tensor([0, *itertools.accumulate(LENGTHS[name])])


def weights_of(head: Any) -> Weights:
    return {name: value.detach().numpy() for name, value in head.named_parameters()}


def test_every_contract_test_sees_every_head() -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    cases = [mark.args[1] for test in tests for mark in getattr(test, "pytestmark", []) if mark.args[0] == "name"]
    assert len(cases) >= 11
    assert all(len(names) == len(HEADS) and set(names) == set(HEADS) for names in cases)


def test_formulas_are_written_for_exactly_the_table() -> None:
    assert all(set(table) == set(HEADS) for table in (SCORES, LOSSES, DECODES, COUNTS, WEIGH))


@pytest.mark.parametrize("rows", [0, 1, 11])
@every_head
def test_scores_are_the_formula_at_each_row(name: str, rows: int) -> None:
    head = built(name)
    states = torch.randn(rows, WIDTH, dtype=torch.float64)
    scores = head(states, torch.tensor([0, rows]))
    assert scores.shape == (rows, 1 if name in NUMBERS else CLASSES)
    expected = SCORES[name](states.numpy(), weights_of(head))
    np.testing.assert_allclose(scores.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("width", "classes"), [(256, 2), (384, 9), (1024, 121)])
@every_head
def test_parameter_count_is_exact(name: str, width: int, classes: int) -> None:
    head = build_head(name, width, classes, 0.1)
    assert sum(p.numel() for p in head.parameters() if p.requires_grad) == COUNTS[name](width, classes)
    assert not list(head.buffers())


@every_head
def test_loss_is_the_formula(name: str) -> None:
    head, (states, targets, offsets) = built(name), batch_of(name)
    scores = 4 * head(states, offsets)  # further apart than fresh weights give
    loss = head.loss(scores, targets, offsets)
    expected = LOSSES[name](scores.detach().numpy(), targets.numpy(), offsets.numpy(), weights_of(head))
    assert loss.shape == ()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)


@every_head
def test_a_batch_loss_weighs_its_examples_as_documented(name: str) -> None:
    head, (states, targets, offsets) = built(name), batch_of(name)
    scores = head(states, offsets)
    total, weight = torch.zeros((), dtype=torch.float64), 0
    for start, end in itertools.pairwise(offsets.tolist()):
        alone = head.loss(scores[start:end], targets[start:end], torch.tensor([0, end - start]))
        total, weight = total + WEIGH[name](end - start) * alone, weight + WEIGH[name](end - start)
    torch.testing.assert_close(head.loss(scores, targets, offsets), total / weight, rtol=1e-12, atol=0)


@pytest.mark.parametrize("examples", [0, 1, 3])
@every_head
def test_a_batch_without_rows_has_loss_zero_and_no_tags(name: str, examples: int) -> None:
    head = built(name)
    offsets, nothing = torch.zeros(examples + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    scores = head(torch.zeros(0, WIDTH, dtype=torch.float64), offsets)
    loss = head.loss(scores, nothing, offsets)
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in head.parameters())
    decided = head.decode(scores, offsets)
    assert decided.shape == (0,)
    assert decided.dtype == (torch.float64 if name in NUMBERS else torch.int64)


@every_head
def test_gradients_reach_every_parameter(name: str) -> None:
    head, (states, targets, offsets) = built(name), batch_of(name)
    head.loss(head(states, offsets), targets, offsets).backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0


@every_head
def test_decode_is_the_best_and_the_same_again(name: str) -> None:
    head, (states, _, offsets) = built(name, dropout=0.5).eval(), batch_of(name)
    scores = head(states, offsets)
    first, again = head.decode(scores, offsets), head.decode(scores, offsets)
    assert first.dtype == (torch.float64 if name in NUMBERS else torch.int64)
    assert first.tolist() == DECODES[name](scores.detach().numpy(), offsets.numpy(), weights_of(head))
    assert torch.equal(first, again)


@every_head
def test_a_row_s_scores_do_not_see_its_neighbours(name: str) -> None:
    head, (states, _, offsets) = built(name), batch_of(name)
    alone = head(states, offsets)[2]
    states[torch.arange(len(states)) != 2] = torch.nan
    torch.testing.assert_close(head(states, offsets)[2], alone, rtol=1e-12, atol=1e-12)


@every_head
def test_dropout_acts_in_training_alone(name: str) -> None:
    dropping, plain, (states, _, offsets) = built(name, dropout=0.5), built(name, dropout=0.0), batch_of(name)
    assert not torch.equal(dropping(states, offsets), dropping(states, offsets))
    assert torch.equal(plain(states, offsets), plain(states, offsets))
    assert torch.equal(dropping.eval()(states, offsets), plain(states, offsets))


@every_head
def test_a_seed_gives_the_same_weights_and_another_seed_others(name: str) -> None:
    first, again, other = (weights_of(built(name, seed=seed)) for seed in (3, 3, 4))
    assert first.keys() == again.keys() == other.keys()
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not any(np.array_equal(first[key], other[key]) for key in first)


@every_head
def test_weights_survive_a_safetensors_file(name: str, tmp_path: Path) -> None:
    head, other, (states, _, offsets) = built(name, seed=5), built(name, seed=6), batch_of(name)
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert torch.equal(head(states, offsets), other(states, offsets))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in head.state_dict().items())


@pytest.mark.parametrize(
    ("misspelt", "nearest"), [("cfr", "crf"), ("clasifier", "classifier"), ("linear_tagger", "linear-tagger")]
)
def test_an_unknown_head_is_refused_with_the_nearest(misspelt: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"unknown head '{misspelt}'") as caught:
        build_head(misspelt, WIDTH, CLASSES, 0.0)
    assert caught.value.remedy == f"did you mean {nearest!r}?"
    assert caught.value.expected == "one of classifier, crf, linear-tagger, regressor, tagger"
