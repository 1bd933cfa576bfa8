"""The precision of a training step's products.

``float32``, or ``bfloat16``: mixed precision as ``torch.autocast`` has it (Micikevicius et al. 2018). Products read
their factors rounded to 8 significant bits and add up in float32; weights, their moments, losses and all scores that
choose an epoch or are reported stay float32. Cores with bfloat16 instructions multiply twice as fast in it, or more.
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


def products_in(dtype: str, device: torch.device) -> torch.autocast:
    """What runs in here multiplies in this precision. Casts are made anew: those kept under vmap would be another's."""
    cast = torch.bfloat16 if dtype == FLOAT32 else getattr(torch, dtype)
    return torch.autocast(device.type, cast, enabled=dtype != FLOAT32, cache_enabled=False)


def exactly(device: torch.device) -> torch.autocast:
    """What runs in here multiplies in the precision of what it is given, whatever is around it."""
    return torch.autocast(device.type, enabled=False)


def widened(scores: Tensor) -> Tensor:
    """Scores as a loss reads them: float32 where they are less."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
