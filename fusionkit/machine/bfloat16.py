"""Products of bfloat16 numbers on CPUs without instructions for them.

oneDNN has a substitute for the missing instructions. On a CPU with AVX2 only, a product of MiniLM's size (2,048 × 384
by 384 × 1,536) took 41 times as long with it as in float32. Here the factors are multiplied in float32, which holds
each bfloat16 number, and the result is rounded to bfloat16: the same numbers but for the order of the sums.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fusionkit.machine.dispatch import DispatchMode

aten = torch.ops.aten

PRODUCTS = frozenset(
    {
        aten.mm,
        aten.bmm,
        aten.addmm,
        aten.baddbmm,
        aten.convolution,
        aten.convolution_backward,
        aten.mkldnn_rnn_layer,  # one layer of an LSTM
        aten.mkldnn_rnn_layer_backward,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        aten._native_multi_head_attention,  # nn.MultiheadAttention and nn.TransformerEncoderLayer without autograd
        aten._transformer_encoder_layer_fwd,
    }
)


@cache
def has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions for its products."""
    capable = torch.cpu.get_capabilities()
    return any(capable.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def in_float32(dtype: str, device: torch.device) -> AbstractContextManager[object]:
    """A context that multiplies bfloat16 numbers in float32 if the device has no instructions for them.

    A backward pass must run in the context too. It does nothing on a GPU, on a CPU that has the instructions, for
    products of another ``dtype``, and inside another such context. A mode that is entered inside it, like a meter, sees
    products of bfloat16 numbers.
    """
    if dtype != "bfloat16" or device.type != "cpu" or has_bfloat16():
        return nullcontext()
    return nullcontext() if is_in_float32() else _InFloat32()


def is_in_float32() -> bool:
    """Whether a context of :func:`in_float32` multiplies bfloat16 numbers in float32 here."""
    return any(isinstance(mode, _InFloat32) for mode in _get_current_dispatch_mode_stack())


class _InFloat32(DispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in PRODUCTS:
            if any(map(_is_narrow, args)):
                found = func(*map(_wide, args), **{name: _wide(each) for name, each in kwargs.items()})
                return tuple(map(_narrow, found)) if isinstance(found, tuple) else _narrow(found)
        elif torch.is_inference_mode_enabled():
            # Without autograd, operations made of others, like a linear map, arrive whole.
            with self:
                if (found := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return found
        return func(*args, **kwargs)


def _is_narrow(given: Any) -> bool:
    return isinstance(given, Tensor) and given.dtype == torch.bfloat16


def _wide(given: Any) -> Any:
    return given.float() if _is_narrow(given) else given


def _narrow(found: Any) -> Any:
    return found.bfloat16() if isinstance(found, Tensor) and found.dtype == torch.float32 else found
