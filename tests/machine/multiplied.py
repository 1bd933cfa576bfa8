"""The types of the numbers that are multiplied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusionkit.machine.bfloat16 import PRODUCTS
from fusionkit.machine.dispatch import DispatchMode


class Multiplied(DispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the types of the factors of all products; in an outer context, of those that are made in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.types = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            self.types |= {each.dtype for each in args if isinstance(each, Tensor) and each.is_floating_point()}
        return func(*args, **(kwargs or {}))
