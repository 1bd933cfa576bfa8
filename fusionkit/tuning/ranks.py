"""One run on several devices: processes that torchrun started share each minibatch and sum up their gradients.

    gradient of the minibatch = Σ_ranks gradient of the rank's examples       (weighed as pieces are, tuning/pieces.py)

Every rank holds the whole encoder, takes every R-th example by length, and makes the same step. Rank 0 is the process
that the user sees: it plans the sweep, trains frozen runs, keeps states and records. The others (:func:`follow`) wait
to be told the next run. Scores come from states of which each rank computes a part (:mod:`fusionkit.tuning.live`).
Source: data parallelism as in Li et al. 2020, "PyTorch Distributed"; one exchange at a step's end, not overlapped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fusionkit.errors import UsageError
from fusionkit.fit.executor.through_encoder import StateFile
from fusionkit.machine.devices import device_of
from fusionkit.specs import RunSpec

WAITING = timedelta(days=30)  # for rank 0, which may have frozen runs to train meanwhile


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that share a run; ``Ranks()`` for a single process."""

    rank: int = 0
    count: int = 1

    @classmethod
    def of_process(cls) -> Ranks:
        """The rank of this process, as :func:`joined` set it up."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        """Give each weight the sum of its gradients over all ranks. A weight with no gradient on any rank keeps none,
        so that Adam skips it.
        """
        if self.count == 1 or not weights:
            return
        own = torch.tensor([float(each.grad is not None) for each in weights], device=weights[0].device)
        used = self.sum(own).tolist()
        touched = [each for each, ranks in zip(weights, used, strict=True) if ranks]
        if not touched:
            return
        parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in touched]
        flat = self.sum(torch.cat([part.flatten() for part in parts]))
        for each, part in zip(touched, torch.split(flat, [part.numel() for part in parts]), strict=True):
            each.grad = part.view_as(each)

    def of_first(self, value: Any) -> Any:
        """Rank 0's value on every rank; it must be one that can be pickled."""
        box = [value]
        if self.count > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def announce(self, spec: RunSpec | None, keeping: StateFile | None = None) -> None:
        """Tell the other ranks, from rank 0, which run is trained next; None ends them."""
        if self.count > 1 and self.rank == 0:
            self.of_first(None if spec is None else (spec, keeping))

    def told(self) -> tuple[RunSpec, StateFile | None] | None:
        """The run that rank 0 trains next, with the file of its state; None where rank 0 has ended."""
        found: tuple[RunSpec, StateFile | None] | None = self.of_first(None)
        return found


ALONE = Ranks()


@contextmanager
def joined(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the processes that torchrun started; yields this one's rank and device, one GPU per process if any.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: there is no GPU for this process.
    """
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        try:
            torch.cuda.set_device(device_of(f"cuda:{local}"))
        except UsageError as error:
            raise error.at("torchrun", "start as many processes as there are GPUs, or choose --device cpu") from error
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=WAITING)
    yield Ranks.of_process(), f"cuda:{local}" if on_gpu else "cpu"
    dist.destroy_process_group()  # not after an error: NCCL would wait for the other ranks
