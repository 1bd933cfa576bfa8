"""The precision of a training step's products.

``float32``, or ``bfloat16``: mixed precision as ``torch.autocast`` has it (Micikevicius et al. 2018). Products read
their factors, and give their results, rounded to 8 significant bits, adding up in float32; what stands between products
stays in the precision that it is given, but pools add up in float32. Weights, their moments and losses are float32, and
so is all of scoring. Cores with bfloat16 instructions multiply twice as fast in it, or more.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FLOAT32 = "float32"


@cache
def has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions for its products."""
    capable = torch.cpu.get_capabilities()
    return any(capable.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def products_in(dtype: str, device: torch.device, *, stacked: bool) -> torch.autocast:
    """What runs in here multiplies in this precision.

    Args:
        stacked: under vmap a weight's cast is made anew wherever it is read: a kept one would be another call's.
    """
    cast = torch.bfloat16 if dtype == FLOAT32 else getattr(torch, dtype)
    return torch.autocast(device.type, cast, enabled=dtype != FLOAT32, cache_enabled=not stacked)


def exactly(device: torch.device) -> torch.autocast:
    """What runs in here multiplies in the precision of what it is given, whatever is around it."""
    return torch.autocast(device.type, enabled=False)


def widened(scores: Tensor) -> Tensor:
    """Scores as a loss reads them: float32 where they are less."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
