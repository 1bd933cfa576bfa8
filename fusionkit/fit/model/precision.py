"""The precision of a training step's products.

``float32``, or ``bfloat16``: mixed precision as ``torch.autocast`` has it (Micikevicius et al. 2018). Products read and
return numbers of 8 significant bits and add up in float32. Operations between products keep the precision of their
input, but pools add up in float32. Weights, their moments and losses are float32. Scoring gives the decisions of
float32 (:mod:`fusionkit.fit.vectorized.bfloat16_decisions` may make most of them in bfloat16).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fusionkit.machine.devices import tf32_products
from fusionkit.specs import FLOAT32


def products_in(dtype: str, device: torch.device, *, stacked: bool) -> AbstractContextManager[object]:
    """A context in which products have this precision."""
    if dtype == FLOAT32:
        return exactly(device)
    # Under vmap casts of weights are not cached: a cached cast would belong to another vmap call.
    return torch.autocast(device.type, getattr(torch, dtype), cache_enabled=not stacked)


def narrowed(device: torch.device) -> torch.dtype | None:
    """The type to which autocast casts products on a device at present; None where it is off."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def exactly(device: torch.device) -> AbstractContextManager[object]:
    """A context in which products have the precision of their factors, inside any other context."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """A context in which products keep float32's 24 bits."""
    return tf32_products(False, device)


def widened(scores: Tensor) -> Tensor:
    """Scores for a loss: float32 where they have a narrower type."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
