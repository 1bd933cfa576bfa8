"""Devices: which one is meant, and where a module's weights lie."""

from __future__ import annotations

import torch
from torch import nn

from fusionkit.errors import UsageError

CPU = torch.device("cpu")


def device_of(asked: str) -> torch.device:
    """The device of a name; ``auto`` is the first GPU, or the CPU where there is none.

    Raises:
        UsageError: a name that torch does not know, or a device that is not there.
    """
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {asked!r} cannot be used",
            expected="auto, cpu, cuda or cuda:N",
            received=str(error).splitlines()[0],
        ) from error


def home_of(module: nn.Module) -> torch.device:
    """Where a module's weights lie; the CPU where it has none."""
    return next((weights.device for weights in module.parameters()), CPU)
