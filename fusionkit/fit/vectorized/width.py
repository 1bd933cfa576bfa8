"""Which runs share a stack, and how many: as many as make it faster, and no more than fit into memory.

    width = min(C / 4w,  (M − 4 Σ w) / (w + a))        on a CPU; on a GPU the second term alone

Symbols: ``w`` bytes of a run's weights; ``4w`` with their gradients and two moments; ``C`` the bytes up to which wider
stacks were measured to be faster; ``M`` the memory that this process may take; ``Σ`` over the runs of the unit, whose
moments and best weights are kept beside their weights; ``a`` the bytes that a run takes besides its gradient while it
steps or is scored, estimated as one copy of the states that it reads. Where the estimate is too low, the sweep tries
the unit again in two halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fusionkit.machine.resources import spare_memory
from fusionkit.specs import RunSpec

STACK_BYTES = 256 << 20  # C: the widest that was measured, and the fastest or nearly so


def shape_of(spec: RunSpec) -> tuple[Any, ...]:
    """The options that runs of one stack share. Rates, decays, schedules, clipping, lengths and seeds may differ."""
    return (
        spec.fusion, spec.fusion_layers, spec.head, spec.dropout, spec.label_smoothing, spec.class_weights,
        spec.optimizer, spec.joint_fusion, spec.freeze, spec.init_part, spec.compute_dtype,
    )  # fmt: skip


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights."""
    return sum(weights.numel() * weights.element_size() for weights in model.parameters())


def room(device: torch.device, sharers: int) -> int | None:
    """Bytes that this process may still take where ``sharers`` processes share the free memory; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # this process's own
        return free // sharers + unused
    spare = spare_memory()
    return None if spare is None else spare // sharers


def width_of(size: int, states: int, unit: Sequence[int], free: int | None, cached: bool = True) -> int:
    """The number of runs per stack, at least one.

    Args:
        size: bytes of a run's weights. states: bytes of the largest batch of states that it reads. unit: bytes of the
            weights of each run of the unit. free: bytes that may be taken; None sets no limit. cached: whether stacks
            larger than C are no faster, as on CPUs.
    """
    width = max(1, STACK_BYTES // max(4 * size, 1)) if cached else max(len(unit), 1)
    if free is not None:
        width = min(width, max(1, (free - 4 * sum(unit)) // max(size + states, 1)))
    return width


def stack_ranges(count: int, width: int, together: int = 1) -> list[range]:
    """Runs ``0 … count − 1`` in as few stacks of at most ``width`` runs as possible, of nearly equal size: stacks of
    one and of three runs cost more than two stacks of two.

    Args:
        together: the number of neighbouring runs that stay in one stack where ``width`` allows it. These are the runs
            of one data seed: a stack's fusions are one product only where each seed has equally many runs.
    """
    if together > width or count % together:
        together = 1
    groups = count // together
    stacks = max(1, -(-groups // (width // together)))
    ends = [groups * k // stacks * together for k in range(stacks + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]
