"""The precision of a training step's products.

``float32``, or ``bfloat16``: mixed precision as ``torch.autocast`` has it (Micikevicius et al. 2018). Products read and
give numbers of 8 significant bits, adding up in float32; what stands between them keeps its precision, but pools add up
in float32. Weights, their moments and losses are float32, and so is all of scoring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor

FLOAT32 = "float32"


@cache
def has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions for its products."""
    capable = torch.cpu.get_capabilities()
    return any(capable.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def products_in(dtype: str, device: torch.device, *, stacked: bool) -> AbstractContextManager[object]:
    """What runs in here multiplies in this precision."""
    if dtype == FLOAT32:
        return exactly(device)
    # Under vmap a weight's cast is made anew wherever it is read: a kept one would be another call's.
    return torch.autocast(device.type, getattr(torch, dtype), cache_enabled=not stacked)


def narrowed(device: torch.device) -> torch.dtype | None:
    """What products on a device are cast to here; None where they are not."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def exactly(device: torch.device) -> AbstractContextManager[object]:
    """What runs in here multiplies in the precision of what it is given, whatever is around it."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """What runs in here has float32's 24 bits: a GPU's LSTM would round its factors to 11 without being asked."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def widened(scores: Tensor) -> Tensor:
    """Scores as a loss reads them: float32 where they are less."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
