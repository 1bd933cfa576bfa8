"""A minibatch: rows of whole examples with their targets, ready for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

FILLING = -100  # the target of a padding row: PyTorch's cross-entropy ignores it


class SharedBuffer:
    """A reusable buffer for minibatches, compared by identity; freed with the last batch that uses it."""


@dataclass(frozen=True)
class Batch:
    """Rows of whole examples, ready for a model.

    Attributes:
        states: float32 ``[rows, layers, hidden]``. offsets: int64 ``[examples · sides + 1]`` into the rows.
        targets: int64, ``[examples]`` or ``[rows read]``, by the task's unit; -1 for a class that train lacks. float32
            ``[examples]`` for a task of numbers, float32 ``[examples, classes]`` where an example may have several.
        read: int64 ``[rows read]``, ascending, the rows the head reads; None is all.
        read_offsets: int64 ``[examples · sides + 1]`` into the rows read.
        name: the task of these targets, where a run has several tasks. others: the batches of the run's other tasks
            over the same rows, by their names.
        place: the buffer that holds the tensors, where other minibatches reuse it; None where the tensors have memory
            of their own. In a buffer, padding rows may follow after the last offset; their targets are :data:`FILLING`.
        longest: an upper bound of the rows between two offsets; None where it is unknown, then compute it from them.
    """

    states: Tensor
    offsets: Tensor
    targets: Tensor
    read: Tensor | None
    read_offsets: Tensor
    name: str = ""
    others: Mapping[str, Batch] = field(default_factory=dict)
    place: SharedBuffer | None = None
    longest: int | None = None

    @property
    def parts(self) -> dict[str, Batch]:
        """The batch of each task by its name: this one and the others."""
        return {self.name: self, **self.others}

    def on(self, device: torch.device) -> Batch:
        """The batch on a device; tensors that are there already are not copied."""
        if device.type == "cpu" and self.states.device.type == "cpu":
            return self
        states = self.states.to(device)
        return Batch(
            states,
            self.offsets.to(device),
            self.targets.to(device),
            None if self.read is None else self.read.to(device),
            self.read_offsets.to(device),
            self.name,
            {name: replace(other, states=states).on(device) for name, other in self.others.items()},
        )
