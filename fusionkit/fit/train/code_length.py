"""The code length of a split's labels under a trained model, in bits.

    L = Σ −log₂ p(label)

Symbols: for a classifier or tagger ``p`` is the softmax of the scores. With several labels per example it is the
product over classes of the probability that the class is present, or absent. For a CRF it is the probability of a
sentence's whole path.
Source: Voita and Titov (2020); the terms of the online code are in :mod:`fusionkit.dataset.online_code`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.task_data import Coding
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.precision import full_float32, widened
from fusionkit.heads.crf import Crf
from fusionkit.heads.sigmoid_classifier import Sigmoid
from fusionkit.machine.devices import home_of


def code_scores(model: FusedModel, batches: Iterable[Batch], coding: Coding, is_block: bool) -> dict[str, float]:
    """``cross_entropy``, the mean per label in nats, which chooses the epoch; ``code_length`` and ``uniform_length`` in
    bits. Labels that train lacks, which validation may have, are left out.

    Args:
        batches: of the split, on the model's device. is_block: whether the split is the block that is coded. The
            labels before the first block are added to it; both codes encode them uniformly.
    """
    nats, units = 0.0, 0
    model.eval()
    with torch.inference_mode(), full_float32(home_of(model)):
        for batch in batches:
            found, count = surprisal(model, batch)
            nats, units = nats + found, units + count
    before = coding.before if is_block else 0.0
    return {
        "cross_entropy": nats / max(units, 1),
        "code_length": nats / math.log(2) + before,
        "uniform_length": units * coding.bits + before,
    }


def surprisal(model: FusedModel, batch: Batch) -> tuple[float, int]:
    """``Σ −log p`` of a batch's labels in nats, and how many there are."""
    head, targets = model.head, batch.targets
    scores: Tensor = widened(model(batch.states, batch.offsets, batch.read))  # [n, classes]
    if isinstance(head, Sigmoid):  # targets: [n, classes]
        found = functional.binary_cross_entropy_with_logits(scores.double(), targets.double(), reduction="sum")
        return float(found), len(targets)
    known = targets >= 0
    if not isinstance(head, Crf):
        found = functional.cross_entropy(scores[known].double(), targets[known], reduction="sum")
        return float(found), int(known.sum())
    offsets = batch.read_offsets
    paths = head.path_score(scores, targets.clamp(min=0), offsets)  # [examples]
    unknown = functional.pad((~known).cumsum(0), (1, 0))[offsets].diff()  # [examples]
    kept = unknown == 0  # a path with an unknown label has no probability
    found = (head.log_partition(scores, offsets) - paths)[kept].double().sum()
    return float(found), int(offsets.diff()[kept].sum())
