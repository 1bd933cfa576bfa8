"""What a model says of masked sub-tokens: the cross-entropy of each, and the likeliest sub-token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fusionkit.dataset.split import TaskSplit
from fusionkit.devices import home_of
from fusionkit.fit.model.fused import FusedModel
from fusionkit.lm_head import LmHead
from fusionkit.ragged import IntArray

SCORE_BYTES = 64 << 20  # of the scores of rows that are scored at once


def masked_predictions(
    model: FusedModel, split: TaskSplit, head: LmHead, layers: tuple[int, ...]
) -> list[tuple[float, int]]:
    """Of each row the cross-entropy of its own id, in nats, and the likeliest id.

    A row has a score for each sub-token of the vocabulary: few rows are scored at once.
    """
    at_once = max(1, SCORE_BYTES // (4 * head.vocabulary))
    found: list[tuple[float, int]] = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(split), at_once):
            rows: IntArray = np.arange(start, min(start + at_once, len(split)), dtype=np.int64)
            batch = split.batch(rows, layers).on(home_of(model))
            scores = model(batch.states, batch.offsets, batch.read)  # [rows, V]
            surprise: Any = torch.nn.functional.cross_entropy(scores, batch.targets, reduction="none")
            found += zip(surprise.tolist(), scores.argmax(1).tolist(), strict=True)
    return found
