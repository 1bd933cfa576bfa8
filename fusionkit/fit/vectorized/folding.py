"""A linear fusion and the linear first layer of a head, multiplied into one map.

    U_r (P_r x_n + p_r) + u_r  =  (U_r P_r) x_n + (U_r p_r + u_r)

Symbols: r a run, n a row; x the states of all layers side by side, ``a`` numbers; P and p the fusion's map to ``m``
numbers (``concat`` has one, ``concat-affine`` one per layer: their matrices side by side, the sum of their biases); U
and u the head's map to ``k`` numbers.

``U P`` is computed once for all rows that are read with the same weights. Folding pays where it takes fewer
multiplications:

    n rows to be scored      n a k + a m k      instead of   n a m + n m k
    n rows to learn from     2 n a k + 3 a m k  instead of   2 n a m + 3 n m k

The second line includes the gradients of both matrices and of the values between them. A tagger that is one linear map
over ``concat-affine`` of MiniLM takes 21,000 multiplications per row instead of 888,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.precision import exactly
from fusionkit.fit.vectorized.dropout import RunDropout
from fusionkit.fit.vectorized.readout import chain_of_head
from fusionkit.fusions.concat import Concat
from fusionkit.fusions.concat_affine import ConcatAffine

Weights = Mapping[str, Tensor]
LINEAR = (Concat, ConcatAffine)
FEW = 4  # times fewer outputs than the fusion has: a tagger's few tags, not another layer of the same width
FUSION, SCORE = "fusion.", "head.score."


@dataclass(frozen=True)
class Folding:
    """How the weights of stacked runs are folded.

    Attributes:
        maps: the prefixes of the weight names of the fusion's maps, in the order of the layers. first: the prefix of
            the head's map in its chain. steps: whether folding is possible in training steps: no dropout acts between
            the maps, and both are learned.
    """

    inputs: int
    between: int
    outputs: int
    maps: tuple[str, ...]
    first: str
    steps: bool

    @classmethod
    def of(cls, model: FusedModel) -> Self | None:
        """None unless fusion and head are linear maps with only dropout between them: no pool, no comparison."""
        fusion = model.fusion
        # A subclass may do more.
        if type(fusion) not in LINEAR or model.pool in ("mean", "max") or model.compares:
            return None
        assert isinstance(fusion, nn.Module)
        if (chain := chain_of_head(model.head)) is None:
            return None
        at = next(k for k, (_, step) in enumerate(chain) if isinstance(step, nn.Linear))
        dropped = [step.p for _, step in chain[:at] if isinstance(step, (nn.Dropout, RunDropout))]
        if len(dropped) < at:
            return None
        maps = {f"{name}.": part for name, part in fusion.named_modules() if isinstance(part, nn.Linear)}
        if not maps:  # concat:first=yes learns nothing
            return None
        inputs = sum(affine.in_features for affine in maps.values())
        name, first = chain[at]
        assert isinstance(first, nn.Linear)
        learned = all(weights.requires_grad for part in (fusion, first) for weights in part.parameters())
        return cls(inputs, fusion.width, first.out_features, tuple(maps), name, learned and not any(dropped))

    def saves(self, rows: float, *, learns: bool) -> float:
        """The number of multiplications that folding saves over ``rows`` rows; at least 0."""
        if learns and not self.steps:
            return 0.0
        to_inputs, to_outputs = (2, 3) if learns else (1, 1)
        apart = rows * self.between * (to_inputs * self.inputs + to_outputs * self.outputs)
        folded = self.inputs * self.outputs * (to_inputs * rows + to_outputs * self.between)
        return max(apart - folded, 0.0)

    @property
    def is_narrow(self) -> bool:
        """Whether the head's map has so few outputs that the folded product over many rows is small."""
        return FEW * self.outputs <= self.between

    def folded(self, weights: Weights) -> dict[str, Tensor]:
        """Weights, float32 ``[R, …]`` by name, that give the same scores from the states of all layers side by side,
        without a fusion.
        """
        first = f"{SCORE}{self.first}"
        weight, bias = weights[f"{first}weight"], weights[f"{first}bias"]  # [R, k, m], [R, k]
        with exactly(weight.device):
            maps = torch.cat([weight @ weights[f"{FUSION}{name}weight"] for name in self.maps], -1)  # [R, k, a]
            shift = torch.stack([weights[f"{FUSION}{name}bias"] for name in self.maps]).sum(0)  # [R, m]
            moved = torch.baddbmm(bias.unsqueeze(2), weight, shift.unsqueeze(2)).squeeze(2)
        kept = {name: w for name, w in weights.items() if not name.startswith(FUSION)}
        return kept | {f"{first}weight": maps, f"{first}bias": moved}


def part_weights(prefix: str, weights: Weights) -> dict[str, Tensor]:
    """The weights of a part, with ``prefix`` removed from their names."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
