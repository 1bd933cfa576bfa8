"""The cost of code: floating-point operations, and the peak bytes of tensors.

    operations = Σ 2 m k n  of products [m, k] · [k, n]   +   Σ numbers that other operations write, or sum up

Products are counted by the formulas of ``torch.utils.flop_counter``. It does not count attention on a CPU, LSTMs and
element-wise operations, which are most of a scalar mix and of a CRF. Those are counted here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from fusionkit.machine.dispatch import DispatchMode

aten = torch.ops.aten


class Meter(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts while its context is active, backward passes included. Views cost nothing.

    Attributes:
        flops: floating-point operations so far.
        peak_bytes: the most bytes that tensors made in the context held at a time, without kernels' scratch memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops, self.peak_bytes = 0, 0
        self._held: dict[int, int] = {}  # bytes of each storage that is alive

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        operation = func.overloadpacket
        if operation in PRODUCTS:
            self.flops += PRODUCTS[operation](*args, **(kwargs or {}), out_val=found)
        elif made and made[0].is_floating_point() and not func.is_view and operation not in MOVES:
            if operation in SUMS:
                self.flops += args[0].numel()
            elif torch.Tag.pointwise in func.tags or operation in ROWWISE:
                self.flops += made[0].numel()
        fresh = [storage for leaf in made if (storage := leaf.untyped_storage())._cdata not in self._held]
        if fresh and operation is not aten.lift_fresh:  # its argument is new too: numbers, or NumPy's memory
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            before = {leaf.untyped_storage()._cdata for leaf in given}
            fresh = [storage for storage in fresh if storage._cdata not in before]  # no views, no results in place
        for storage in fresh:
            self._hold(storage)
        return found

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._held:
            self._held[key] = storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, sum(self._held.values()))
            weakref.finalize(storage, self._held.pop, key, None)


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> int:
    shapes = gradient.shape, query.shape, key.shape, value.shape
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _lstm(states: Tensor, weights: Tensor | Sequence[Tensor], *rest: Any, **named: Any) -> int:
    """One layer and direction on a CPU, whose recurrent weights follow; on a GPU all of them, biases included."""
    every = (weights, rest[0]) if isinstance(weights, Tensor) else weights
    rows = states.numel() // states.shape[-1]
    return 2 * rows * sum(each.numel() for each in every if each.dim() == 2)


def _lstm_backward(*given: Any, **named: Any) -> int:
    return 2 * _lstm(*given, **named)  # the gradients of the input and of the weights


PRODUCTS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mkldnn_rnn_layer: _lstm,
    aten.mkldnn_rnn_layer_backward: _lstm_backward,
    aten._cudnn_rnn: _lstm,
    aten._cudnn_rnn_backward: _lstm_backward,
}
SUMS = {aten.sum, aten.mean, aten.amax, aten.amin, aten.max, aten.logsumexp, aten.linalg_vector_norm, aten.cumsum}
# They compute at least one operation per number that they write, but torch does not tag them.
ROWWISE = {
    aten._softmax, aten._log_softmax, aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.native_layer_norm, aten.native_layer_norm_backward, aten.index_add, aten.index_add_, aten.scatter_add,
}  # fmt: skip
# They write numbers and compute none.
MOVES = {
    aten.clone, aten.copy, aten.copy_, aten._to_copy, aten.fill, aten.fill_, aten.zero_, aten.zeros_like,
    aten.ones_like, aten.full_like, aten.empty_like, aten.masked_fill, aten.masked_fill_, aten.where,
}  # fmt: skip
