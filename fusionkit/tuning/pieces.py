"""A minibatch in pieces whose gradients add up to those of the whole: the same step with less memory.

    loss of the minibatch = Σ_pieces (n_piece / n) · loss of the piece

Symbols: ``n`` the number of items that a head's loss is the mean over: examples or words, sentences for a CRF. Where
classes have weights, ``n`` is the sum of the rows' class weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.split import TaskSplit
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import Model
from fusionkit.heads.crf import Crf
from fusionkit.heads.softmax import Softmax
from fusionkit.ragged import IntArray


def pieces_of(split: TaskSplit, examples: IntArray, count: int, ranks: int = 1) -> list[list[IntArray]]:
    """Split a minibatch into at most ``count`` pieces per rank, with examples of similar length in one piece. Ranks get
    equally many examples, to one; with fewer examples than ranks the last ranks get none.
    """
    if count == ranks == 1:
        return [[examples]]
    lengths = np.diff(split.offsets[:: split.sides])[examples]
    ordered = examples[np.argsort(lengths, kind="stable")]
    shares = [ordered[rank::ranks] for rank in range(ranks)]
    return [[piece for piece in np.array_split(share, count) if len(piece)] for share in shares]


def shares_of(model: Model, batches: Sequence[Batch]) -> list[dict[str, float]]:
    """Each piece's share of the minibatch's mean loss, by task. The shares of a task sum to 1, or all are 0."""
    if len(batches) == 1:
        return [dict.fromkeys(batches[0].parts, 1.0)]
    weights = [{name: _weight(model.parts[name], own) for name, own in batch.parts.items()} for batch in batches]
    whole = {name: sum(each[name] for each in weights) or 1.0 for name in weights[0]}
    return [{name: weight / whole[name] for name, weight in each.items()} for each in weights]


def _weight(part: FusedModel, batch: Batch) -> float:
    head = part.head
    if isinstance(head, Crf):
        return float((batch.read_offsets.diff() > 0).sum())
    if isinstance(head, Softmax) and head.class_weights is not None:
        return float(head.class_weights[batch.targets].sum())
    return float(len(batch.targets))
