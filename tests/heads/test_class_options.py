"""Class weights and label smoothing: the loss of each head that takes them is PyTorch's and the formula's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.heads import HEADS, build_head, decides_by_softmax, decides_rows_alone

BY_SOFTMAX = ["bcn", "classifier", "esim", "linear-tagger", "tagger"]
CLASSES, ROWS = 4, 9
WEIGHTS = [0.5, 2.0, 0.0, 1.25]


def smoothed(scores: torch.Tensor, targets: torch.Tensor, weights: list[float], share: float) -> float:
    """Cross-entropy to ``(1 − share)`` of the target and ``share/C`` of every class, each weighed by its class."""
    log_p = scores.numpy() - np.log(np.exp(scores.numpy()).sum(1, keepdims=True))
    total: float = 0.0
    for row, target in zip(log_p, targets.tolist(), strict=True):
        total -= (1 - share) * weights[target] * row[target]
        total -= share / CLASSES * sum(w * p for w, p in zip(weights, row, strict=True))
    return float(total / sum(weights[target] for target in targets.tolist()))


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("name", BY_SOFTMAX)
def test_the_loss_is_the_weighted_and_smoothed_cross_entropy(
    name: str, weights: list[float] | None, share: float
) -> None:
    head: Any = build_head(name, 5, CLASSES, 0.0)
    generator = torch.Generator().manual_seed(1)
    scores = 2 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (ROWS,), generator=generator)
    assert set(targets.tolist()) == set(range(CLASSES))
    head.label_smoothing = share
    head.class_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    loss = head.loss(scores, targets, torch.tensor([0, ROWS]))
    assert loss.item() == pytest.approx(smoothed(scores, targets, weights or [1.0] * CLASSES, share), rel=1e-12)
    theirs = torch.nn.CrossEntropyLoss(weight=head.class_weights, label_smoothing=share)
    assert loss.item() == theirs(scores, targets).item()


def test_class_weights_are_no_part_of_the_weights_that_are_kept() -> None:
    head: Any = build_head("classifier", 5, CLASSES, 0.0)
    names = set(head.state_dict())
    head.class_weights = torch.ones(CLASSES)
    assert set(head.state_dict()) == names
    assert head.double().class_weights.dtype == torch.float64  # it moves with the module


def test_heads_that_do_not_decide_rows_by_softmax_are_told_apart() -> None:
    assert {name: decides_by_softmax(name) for name in HEADS} == {
        "classifier": True, "linear-classifier": True, "tagger": True, "linear-tagger": True,
            "crf": False, "bilstm-crf": False,
        "regressor": False, "linear-regressor": False, "bcn": True, "esim": True, "esim-regressor": False,
        "sigmoid-classifier": False,
    }  # fmt: skip
    rows = [name for name in HEADS if decides_rows_alone(name)]
    assert rows == ["classifier", "linear-classifier", "tagger", "linear-tagger"]
