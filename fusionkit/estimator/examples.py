"""Examples that come as arrays, without a store's columns, as a task's split: for training and for prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionkit.dataset.split import States, TaskSplit
from fusionkit.errors import UsageError
from fusionkit.fit.loader.minibatches import InMemoryStates
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.precision import full_float32
from fusionkit.fit.train.decisions import read_blocks
from fusionkit.machine.devices import home_of
from fusionkit.plural import counted
from fusionkit.ragged import IntArray, Ragged, offsets_of
from fusionkit.specs import ONE_TOKEN
from fusionkit.store import Split


@dataclass(frozen=True)
class ArrayExamples:
    """Rows of examples without labels.

    Attributes:
        row_offsets: int64 ``[examples + 1]``, half-open. row_mask: bool ``[rows]``: False where a row has no state.
    """

    states: States
    row_offsets: IntArray
    row_mask: NDArray[np.bool_]

    @property
    def kept(self) -> tuple[IntArray, IntArray]:
        """The rows that have a state, and the offsets of the examples among them."""
        return np.flatnonzero(self.row_mask), offsets_of(self.row_mask.astype(np.int64))[self.row_offsets]

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def examples_of(given: Ragged | Split | NDArray[Any]) -> ArrayExamples:
    """Examples from ragged rows, a store's split or an array ``[examples, layers, hidden]`` of one row per example."""
    if isinstance(given, np.ndarray):
        states = torch.from_numpy(np.array(given, dtype=np.float32))
        given = Ragged(states, np.arange(len(states) + 1, dtype=np.int64), np.ones(len(states), dtype=bool))
    states_of = InMemoryStates(given.hidden_states) if isinstance(given, Ragged) else given.hidden_states
    return ArrayExamples(states_of, given.row_offsets, given.row_mask)


def example_split(
    examples: ArrayExamples,
    pool: str | None,
    whole: bool,
    targets: IntArray | NDArray[np.float32] | None = None,
    gold: list[Any] | None = None,
    *,
    unpooled: bool = False,
) -> TaskSplit:
    """A split of examples with one label or number each; without ``targets``, for prediction.

    Args:
        pool: ``mean`` or ``max`` read all rows, ``cls`` the first, ``last`` the last, None the only one.
        whole: keep all rows of each example, for a fusion that looks at them.
        unpooled: the head reads all rows of each example, without a pool.

    Raises:
        UsageError: an example lacks a row, or has several where nothing pools them.
    """
    rows, offsets = examples.kept
    counts = np.diff(offsets if pool in ONE_TOKEN else examples.row_offsets)
    every = unpooled or pool in ("mean", "max")
    if not every and (wrong := np.flatnonzero(counts == 0 if pool in ONE_TOKEN else counts != 1)).size:
        raise UsageError(
            f"example {wrong[0]} cannot be read",
            expected="a row or more" if pool in ONE_TOKEN else "one row in each example, as in training",
            received=counted(counts[wrong[0]], "row"),
            remedy="choose pool='mean' or 'max', or remove such examples",
        )
    if pool in ONE_TOKEN:  # of the rows that have a state
        one = rows[offsets[1:] - 1] if pool == "last" else rows[offsets[:-1]]
    else:
        one = examples.row_offsets[:-1]
    read = None
    if not every and whole:
        read = np.isin(rows, one)
        read = None if read.all() else read
    elif not every:
        rows, offsets = one, np.arange(len(one) + 1, dtype=np.int64)
    wanted = np.zeros(len(examples), dtype=np.int64) if targets is None else targets
    ids = [str(example) for example in range(len(examples))]
    return TaskSplit(examples.states, rows, offsets, wanted, gold or [None] * len(examples), ids, read=read)


def word_split(
    examples: ArrayExamples, targets: IntArray | None = None, gold: list[list[str]] | None = None
) -> TaskSplit:
    """A split of examples with one tag per row, int64 ``[rows]``; ``gold`` has each example's tags. Without
    ``targets``, for prediction.
    """
    rows, offsets = examples.kept
    wanted = np.zeros(len(rows), dtype=np.int64) if targets is None else targets[rows]
    words = examples.row_mask, examples.row_offsets
    ids = [str(example) for example in range(len(examples))]
    return TaskSplit(examples.states, rows, offsets, wanted, gold or [None] * len(examples), ids, *words)


@torch.inference_mode()
def scores_of(model: FusedModel, split: TaskSplit, layers: tuple[int, ...]) -> Tensor:
    """The scores of each example, ``[examples, classes]``, in their order."""
    home, order, found = home_of(model), list[IntArray](), list[Tensor]()
    with full_float32(home):
        for examples, batch in read_blocks(split, layers, home):
            order.append(examples)
            found.append(model(batch.states, batch.offsets, batch.read).cpu())
    return torch.cat(found)[torch.from_numpy(np.concatenate(order).argsort())]
