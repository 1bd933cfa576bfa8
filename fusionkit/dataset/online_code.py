"""The blocks of an online code: a run learns from a prefix of the nested draw, and codes the block after it.

    L_online = t_1 b + Σ_(i<S) −log₂ p_θi(labels of the examples from t_i to t_(i+1))        t_i = ⌈n q_i⌉
    L_uniform = n b        compression = L_uniform / L_online

Symbols: n the training examples, in the order of the permutation of the nested draw of a data seed; ``q_i`` the shares
:data:`PERCENT`; S their number; ``θ_i`` what was learned from the first ``t_i`` examples; ``b = log₂ K`` the bits of
one label of K classes, or K bits where an example may have any number of K labels. For tagging, an example is a
sentence; ``t_1`` and n in the formulas of L_online and L_uniform then count the words that have a row.

Source: Voita and Titov (2020), section 3.2, with their shares.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fusionkit.dataset.draws import draw_size, nested_order
from fusionkit.dataset.task_data import Coding, TaskData
from fusionkit.specs import MDL_BLOCKS, RunSpec

PERCENT = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25.0, 50.0, 100.0)
assert len(PERCENT) == MDL_BLOCKS + 1


def block_ends(examples: int) -> list[int]:
    """``t_1 … t_S``, ascending; with few examples the first blocks are empty."""
    return [math.ceil(examples * percent / 100) for percent in PERCENT]


def coded_data(spec: RunSpec, data: TaskData) -> TaskData:
    """The data of a run of an online code: train is the prefix that it learns from, test the block that it codes.

    Args:
        spec: its ``mdl`` is the number of the prefix, from 1. data: the data of the same run without ``mdl``.

    Raises:
        UsageError: a draw larger than the training split.
    """
    assert spec.mdl is not None
    count = len(data.train)
    wanted = count if spec.shots is None else draw_size(count, spec.shots, data.classes)
    order, ends = nested_order(count, spec.data_seed)[:wanted], block_ends(wanted)
    start, stop = ends[spec.mdl - 1 : spec.mdl + 1]
    learned, coded = (data.train.subset(np.sort(part)) for part in (order[:start], order[start:stop]))
    bits = float(len(data.labels)) if data.task.several else math.log2(len(data.labels))
    # One target per label to code; for word tasks, per word that has a row.
    coding = Coding(bits, bits * len(learned.targets) if spec.mdl == 1 else 0.0)
    return dataclasses.replace(data, train=learned, test=coded, tests={}, coding=coding)
