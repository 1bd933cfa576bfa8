"""Fusions of many runs at once, where batched products beat ``torch.func.vmap`` of the plain module.

    linear          h_rn = Σ_j m_rj z_nj          m_r = γ_r softmax(w_r)
    attention       h_rn = Σ_j α_rnj z_nj         α_rn = softmax_j(q_r · z_nj / τ)
    element-wise    h_rn = Σ_j M_rj ⊙ z_nj        M_r = softmax_j(W_r), with softmax=no W_r
    concat          h_rn = P_r [z_n1; …; z_nL] + b_r
    dwatt           the formula of its own file, with an r on every weight

Symbols: r a run, n a row, j a layer; the rest as in the fusion's own file. One product reads the states for all runs.
Under vmap the same sums would be one small product per run, or a copy of the states per run. ``benchmarks/stacking.py``
has the figures. Mixes take about a hundredth of the head's multiplications, in small products, so autocast is off for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusionkit.fit.model.precision import exactly
from fusionkit.fit.vectorized.run_linear import products
from fusionkit.fusions import Fusion
from fusionkit.fusions.attention import Attention
from fusionkit.fusions.concat import Concat
from fusionkit.fusions.dwatt import DWAtt
from fusionkit.fusions.element_wise import ElementWise
from fusionkit.fusions.linear import Linear

Weights = Mapping[str, Tensor]
StackedFusion = Callable[[Fusion, Weights, Tensor, int], Tensor]

SUMMED_BYTES = 12 << 20  # below it einsum takes up to 7 times as long as sums; at 34 MiB half as long
BETWEEN_BYTES = 32 << 20  # at 49 MiB this form of dwatt took 1.3 times as long as vmap, at 27 MiB 0.97 to 1.03


def stacked_fusion(fusion: Fusion) -> StackedFusion | None:
    """The batched form of a fusion; None where vmap stacks it.

    The form takes the module (for its options), the runs' weights ``[R, …]`` by name, states
    ``[S, n, layers, hidden]`` of S data seeds, and the number of runs per data seed, K = R / S. It returns
    ``[S, K, n, hidden]``.
    """
    if isinstance(fusion, Linear) and fusion.norm != "none":
        return None
    return FORMS.get(type(fusion))


def spreads(fusion: Fusion, states: Tensor, runs: int) -> bool:
    """Whether a form's intermediate states, one set per layer and run, would not fit into a CPU's cache."""
    return isinstance(fusion, DWAtt) and states.device.type == "cpu" and runs * states.nbytes > BETWEEN_BYTES


def fuse_linear(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One mix per run, for all rows."""
    mix = weights["weight"].softmax(-1)  # [R, layers]
    if "gamma" in weights:
        mix = weights["gamma"].unsqueeze(1) * mix
    mix = mix.reshape(-1, 1, each, mix.shape[-1])  # [S, 1, K, layers]
    with exactly(states.device):
        fused = mix @ states  # [S, n, K, hidden]
    return fused.transpose(1, 2)


def fuse_attention(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One mix per run and row."""
    assert isinstance(fusion, Attention)
    query = weights["query"].reshape(len(states), each, -1)  # [S, K, hidden]
    flat = states.flatten(1, 2)
    with exactly(states.device):
        # With gradients the query is the left factor: its gradient is then a product with the rows of the states. As a
        # product with their columns it took a fifth of a step. Without gradients, few queries are up to twice as fast
        # as the right factor.
        scores = (query @ flat.mT).mT if torch.is_grad_enabled() else flat @ query.mT  # [S, n · layers, K]
        alpha = (scores / fusion.temperature).reshape(*states.shape[:3], each).softmax(2)  # [S, n, layers, K]
        fused = alpha.mT @ states  # [S, n, K, hidden]
    return fused.transpose(1, 2)


def fuse_element_wise(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One mix per run and hidden dimension."""
    assert isinstance(fusion, ElementWise)
    mix = weights["weight"].softmax(1) if fusion.softmax else weights["weight"]
    mix = mix.reshape(-1, each, *mix.shape[1:])  # [S, K, layers, hidden]
    runs, rows, hidden = mix.shape[0] * each, states.shape[1], states.shape[3]
    if states.device.type != "cpu" or runs * rows * hidden * states.element_size() > SUMMED_BYTES:
        with exactly(states.device):
            return torch.einsum("skld,snld->sknd", mix, states)
    mix = mix.unsqueeze(3)
    first, *more = ((mix[:, :, layer], state.unsqueeze(1)) for layer, state in enumerate(states.unbind(2)))
    fused = first[0] * first[1]  # [S, K, n, hidden]
    for own, state in more:
        fused.addcmul_(own, state)
    return fused


def fuse_concat(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """One product with the matrices of all runs."""
    rows = states.flatten(2)  # [S, n, layers · hidden]
    rows = rows.squeeze(0) if len(rows) == 1 else rows.repeat_interleave(each, 0)
    fused = products(rows, weights["project.weight"], weights["project.bias"])  # [R, n, width]
    return fused.reshape(len(states), each, *fused.shape[1:])


def fuse_dwatt(fusion: Fusion, weights: Weights, states: Tensor, each: int) -> Tensor:
    """Between the products, the bottlenecks of all layers and of the query are stacked in one tensor."""
    assert isinstance(fusion, DWAtt)
    rows = [state.squeeze(0) if len(state) == 1 else state.repeat_interleave(each, 0) for state in states.unbind(2)]
    last, layers = rows[-1], range(len(rows))
    inner = [f"values.{n}.0" for n in layers] + ["query"]

    def mapped(part: str, given: Sequence[Tensor]) -> list[Tensor]:
        names = [f"{name}.{part}" for name in inner]
        return [products(x, weights[f"{n}.weight"], weights[f"{n}.bias"]) for n, x in zip(names, given, strict=True)]

    def normed(x: Tensor, names: Sequence[str]) -> Tensor:
        scale, shift = (torch.stack([weights[f"{n}.{one}"] for n in names]).unsqueeze(2) for one in ("weight", "bias"))
        return functional.layer_norm(x, x.shape[-1:]) * scale + shift

    up = functional.gelu(torch.stack(mapped("0", [*rows, last])))  # [layers + 1, R, n, hidden / 2]
    *down, asked = mapped("3", normed(up, [f"{n}.2" for n in inner]).unbind())
    values = normed(torch.stack(down), [f"values.{n}.1" for n in layers])  # [layers, R, n, hidden]
    query = 1 + functional.elu(last + asked)
    with exactly(states.device):
        keys = torch.baddbmm(weights["key.bias"].unsqueeze(1), weights["positions"], weights["key.weight"].mT)
        alpha = (query @ keys.mT / fusion.temperature).softmax(-1)  # [R, n, layers]
        fused = last + (alpha.movedim(-1, 0).unsqueeze(-1) * values).sum(0)  # [R, n, hidden]
    return fused.reshape(len(states), each, *fused.shape[1:])


FORMS: dict[type[Any], StackedFusion] = {
    Linear: fuse_linear,
    Attention: fuse_attention,
    ElementWise: fuse_element_wise,
    Concat: fuse_concat,
    DWAtt: fuse_dwatt,
}
