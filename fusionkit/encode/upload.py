"""Copy a part's batches to the encoder's device; to a GPU all in one copy, so that no batch waits for its input.

A copy from memory that is not pinned waits until the GPU has finished all earlier work. With three such copies per
batch, and one for the places of its rows, the GPU was idle while the next batch was launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fusionkit.encode.batches import Gather, PaddedBatch
from fusionkit.ragged import IntArray


class BatchWork(NamedTuple):
    """A batch, the places of its wanted rows in it, and their row numbers in the part: int64 ``[n]``."""

    batch: PaddedBatch
    gather: Gather
    targets: IntArray


def ready(work: Iterator[BatchWork], device: torch.device) -> Iterator[BatchWork]:
    """The same work with its tensors on a device.

    On a CPU each batch is made when it is taken. For a GPU all are made now, in the thread that calls: the thread that
    takes them has to launch the encoder's kernels, and the GPU would wait.
    """
    return work if device.type == "cpu" else in_one_copy(list(work), device)


def in_one_copy(work: list[BatchWork], device: torch.device) -> Iterator[BatchWork]:
    """As :func:`ready`; all tensors are views of one tensor, which is copied when the first batch is taken, without
    waiting for the copy.
    """
    flat = [tensor.reshape(-1).numpy() for each in work for tensor in _tensors(each)]
    packed = torch.empty(sum(map(len, flat)), dtype=torch.int64, pin_memory=device.type == "cuda")
    if flat:  # else all sequences of the part were computed before
        np.concatenate(flat, out=packed.numpy())
    return _sent(work, packed, [len(each) for each in flat], device)


def _sent(work: list[BatchWork], packed: Tensor, lengths: list[int], device: torch.device) -> Iterator[BatchWork]:
    pieces = iter(torch.split(packed.to(device, non_blocking=True), lengths))
    for batch, gather, targets in work:
        token_ids, mask, segments = (next(pieces).view(batch.mask.shape) for _ in range(3))
        tokens = next(pieces)
        ends = None if gather.ends is None else next(pieces)
        yield BatchWork(PaddedBatch(batch.examples, token_ids, mask, segments), Gather(tokens, ends), targets)


def _tensors(work: BatchWork) -> Iterator[Tensor]:
    """All tensors of a batch's work, each int64."""
    yield from (work.batch.token_ids, work.batch.mask, work.batch.segments, work.gather.tokens)
    if work.gather.ends is not None:
        yield work.gather.ends
