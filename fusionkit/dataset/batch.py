"""A minibatch: rows of whole examples with their targets, ready for a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

FILLING = -100  # the target of a row that is no one's: PyTorch's cross-entropy passes over it


class SharedBuffer:
    """Memory that minibatches come in again and again; itself and no other, and gone with the last that lies there."""


@dataclass(frozen=True)
class Batch:
    """Rows of whole examples, ready for a model.

    Attributes:
        states: float32 ``[rows, layers, hidden]``. offsets: int64 ``[examples · sides + 1]`` into the rows.
        targets: int64, ``[examples]`` or ``[rows read]`` as the task's unit is; -1 where unseen in train. float32 for
            a task of numbers.
        read: bool ``[rows]``, those the head reads; None is all.
        read_offsets: int64 ``[examples · sides + 1]`` into the rows read.
        slots: the same rows as a joint run's slots read them.
        place: the memory that the tensors lie in, where it is that of other minibatches too, or of the same one again;
            None where it is this one's alone. There rows may follow behind the last offset that fill it up: their
            targets are :data:`FILLING`.
    """

    states: Tensor
    offsets: Tensor
    targets: Tensor
    read: Tensor | None
    read_offsets: Tensor
    slots: Batch | None = None
    place: SharedBuffer | None = None

    @property
    def parts(self) -> tuple[Batch, ...]:
        """Itself, and the slots where there are any."""
        return (self,) if self.slots is None else (self, self.slots)

    def on(self, device: torch.device) -> Batch:
        """The same on a device; what lies there already is not copied."""
        if device.type == "cpu" and self.states.device.type == "cpu":
            return self
        states = self.states.to(device)
        slots = None if self.slots is None else replace(self.slots, states=states).on(device)
        return Batch(
            states,
            self.offsets.to(device),
            self.targets.to(device),
            None if self.read is None else self.read.to(device),
            self.read_offsets.to(device),
            slots,
        )
