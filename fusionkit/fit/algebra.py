"""Fusions of many runs at once, where batched products beat ``torch.func.vmap`` of the plain module.

    last, layer     h_rn = z_nk                                       nothing to compute
    linear          h_rn = Σ_j m_rj z_nj          m_r = γ_r softmax(w_r)
    attention       h_rn = Σ_j α_rnj z_nj         α_rn = softmax_j(q_r · z_nj / τ)
    element-wise    h_rn = Σ_j W_rj ⊙ z_nj        W_r = softmax_j(W_r)
    concat          h_rn = P_r [z_n1; …; z_nL] + b_r

Symbols: r a run, n a row, j a layer; the rest as in the fusion's own file. Each is the plain module's formula with the
run as one more axis of its products, so that all runs read the states together: under vmap the same sums are one
small product a run, or a copy of the states a run. ``benchmarks/stacking.py`` has the figures; what is not here is
stacked by vmap. Mixes are a hundredth of what the head multiplies, in small products: autocast leaves them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusionkit.fit.precision import exactly
from fusionkit.fit.products import products
from fusionkit.fusions import Fusion
from fusionkit.fusions.attention import Attention
from fusionkit.fusions.concat import Concat
from fusionkit.fusions.element_wise import ElementWise
from fusionkit.fusions.last import Last
from fusionkit.fusions.layer import Layer
from fusionkit.fusions.linear import Linear

Weights = Mapping[str, Tensor]
StackedFusion = Callable[[Fusion, Weights, Tensor, int], Tensor]


def stacked_fusion(fusion: Fusion) -> StackedFusion | None:
    """The batched form of a fusion; None where vmap stacks it.

    It takes the module for its options, the runs' weights by name ``[R, …]``, states ``[S, n, layers, hidden]`` of S
    data seeds, and how many runs K = R / S each of them has; it gives ``[S, K, n, hidden]``.
    """
    if isinstance(fusion, Linear) and fusion.norm != "none":
        return None
    return FORMS.get(type(fusion))


def fuse_one(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """The one layer that is read, the same for all runs of one data seed."""
    return states[:, :, -1].unsqueeze(1).expand(-1, each, -1, -1)


def fuse_linear(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One mix a run for all rows."""
    mix = weights["weight"].softmax(-1)  # [R, layers]
    if "gamma" in weights:
        mix = weights["gamma"].unsqueeze(1) * mix
    mix = mix.reshape(-1, 1, each, mix.shape[-1])  # [S, 1, K, layers]
    with exactly(states.device):
        fused = mix @ states  # [S, n, K, hidden]
    return fused.transpose(1, 2)


def fuse_attention(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """A mix a run and row."""
    assert isinstance(fusion, Attention)
    query = weights["query"].reshape(len(states), each, -1)  # [S, K, hidden]
    with exactly(states.device):
        scores = states.flatten(1, 2) @ query.mT / fusion.temperature  # [S, n · layers, K]
        alpha = scores.reshape(*states.shape[:3], each).softmax(2)  # [S, n, layers, K]
        fused = alpha.mT @ states  # [S, n, K, hidden]
    return fused.transpose(1, 2)


def fuse_element_wise(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """A mix a run and number of the state."""
    mix = weights["weight"].softmax(1)
    mix = mix.reshape(-1, each, *mix.shape[1:])  # [S, K, layers, hidden]
    with exactly(states.device):
        return torch.einsum("skld,snld->sknd", mix, states)


def fuse_concat(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One product with the matrices of all runs."""
    rows = states.flatten(2)  # [S, n, layers · hidden]
    rows = rows.squeeze(0) if len(rows) == 1 else rows.repeat_interleave(each, 0)
    fused = products(rows, weights["project.weight"], weights["project.bias"])  # [R, n, width]
    return fused.reshape(-1, each, *fused.shape[1:])


FORMS: dict[type[Any], StackedFusion] = {
    Last: fuse_one,
    Layer: fuse_one,
    Linear: fuse_linear,
    Attention: fuse_attention,
    ElementWise: fuse_element_wise,
    Concat: fuse_concat,
}
