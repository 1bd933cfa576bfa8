"""Diff pruning: ``θ + z ⊙ w`` for every weight, ``z`` nearly everywhere zero.

    z = min(1, max(0, 3 s − 1.5)),   s = sigmoid((log u − log(1 − u) + α) / β),   u ~ U(0, 1),   β = 2/3
    loss = task + λ max(0, Σ sigmoid(α) − target · N)

Symbols: ``θ`` the encoder's weights, frozen, ``N`` of them; ``w`` the difference, which starts at zero, so that the
encoder starts as it was; ``z`` hard concrete gates of stretch −1.5 … 1.5, drawn once per step, and ``α`` their
location, which starts at 5; ``sigmoid(α)`` the probability that a gate is not zero (the term ``−β log(1.5 / 1.5)`` is
zero).
Two phases: ``w`` and ``α`` train for a share of the steps. Then the ``target`` share of all weights with the largest
``|z w|``, where ``s = sigmoid(α)``, is kept for good; there ``w`` becomes ``z w`` and trains on with z = 1. In
evaluation mode, in either phase, the model has only the differences that would be kept.
Source: Guo, Rush and Kim (2021), their gates without groups. λ's default and the penalty's end at the target are ours.

Options: ``target``, the share of weights that may differ; ``fix``, the share of the steps after which they are fixed;
``penalty``, λ; ``gates``, the rate of ``α``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fusionkit.errors import StoreError, UsageError
from fusionkit.methods.attached import Attached, copied, refuse_other, trains
from fusionkit.methods.structure import Structure

LOCATION, BETA, STRETCH = 5.0, 2 / 3, 1.5
DIFFERENCE, GATES, MASK, PLACES, VALUES = ":difference", ":gates", ":mask", ":places", ":values"


class Difference(nn.Module):
    """``θ → θ + z ⊙ w`` of one weight."""

    noise: Tensor | None  # log u − log(1 − u) of this step
    kept: Tensor | None  # where the difference is kept, bool

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros_like(weight))
        self.location = nn.Parameter(torch.full_like(weight, LOCATION))
        self.noise, self.kept, self.fixed = None, None, False

    def forward(self, theta: Tensor) -> Tensor:
        """The weight in effect, of the weight's shape."""
        if self.kept is not None and (self.fixed or not self.training):
            return theta + self.kept * self.whole()
        return theta + self.gate(self.noise) * self.w

    def gate(self, noise: Tensor | None) -> Tensor:
        """``z``, of the weight's shape; without noise ``s = sigmoid(α)``."""
        scores = self.location if noise is None else (self.location + noise) / BETA
        return (2 * STRETCH * scores.sigmoid() - STRETCH).clamp(0, 1)

    def whole(self) -> Tensor:
        """``z w`` before anything is cut, without noise; once fixed, ``w``."""
        return self.w if self.fixed else self.gate(None) * self.w

    def draw(self) -> None:
        """Draw new noise for a step."""
        u = torch.rand_like(self.w).clamp(1e-6, 1 - 1e-6)
        self.noise = u.log() - (1 - u).log()

    @torch.no_grad()
    def size(self) -> Tensor:
        """How large the difference is, ``|z w|``, flat."""
        return self.whole().abs().flatten()

    @torch.no_grad()
    def value(self) -> Tensor:
        """What is kept of the difference, of the weight's shape."""
        assert self.kept is not None
        return self.kept * self.whole()


class DiffPrune:
    """Trains: a difference and a gate for every weight, and keeps the target's share. Parameters: 2 N."""

    def __init__(
        self, *, target: float = 0.005, fix: float = 0.5, penalty: float = 1.25e-7, gates: float = 0.1
    ) -> None:
        if not (0 < target <= 1 and 0 < fix <= 1 and 0 <= penalty < math.inf and 0 <= gates < math.inf):
            raise UsageError(
                "there is no such diff pruning",
                expected="target and fix above 0, up to 1; penalty and gates from 0",
                received=f"target={target}, fix={fix}, penalty={penalty}, gates={gates}",
                remedy="choose values in that range",
            )
        self.target, self.fix, self.penalty, self.gates = target, fix, penalty, gates

    def attach(self, model: Any, structure: Structure) -> Attached:
        """Every weight in use gets a difference."""
        names = {name: parameter for name, (_, parameter) in structure.parameters().items()}
        made = {name: Difference(parameter) for name, parameter in names.items()}
        for name, difference in made.items():
            owner, _, last = name.rpartition(".")
            parametrize.register_parametrization(model.get_submodule(owner), last, difference, unsafe=True)
        return _Pruned(self, model, structure, made).attached()


class _Pruned:
    """The differences of one model, and what they do in the phases."""

    def __init__(self, method: DiffPrune, model: Any, structure: Structure, made: Mapping[str, Difference]) -> None:
        self.method, self.model, self.structure, self.made = method, model, structure, made
        self.count = sum(each.w.numel() for each in made.values())

    def attached(self) -> Attached:
        own = {name: parameter for name, parameter in self.model.named_parameters() if ".parametrizations." in name}
        own = {name: parameter for name, parameter in own.items() if not name.endswith(".original")}
        gates = {name for name in own if name.endswith(".location")}
        return Attached(
            self.model,
            self.structure,
            trains(self.model, own),
            lowest_layer=0,
            rates=dict.fromkeys(gates, self.method.gates),
            undecayed=gates,
            penalty=self.penalty,
            begin_step=self.begin_step,
            switched=self.switched,
            read=self.read,
            write=self.write,
            read_state=self.read_state,
            write_state=self.write_state,
            fold=self.fold,
            undo=self.undo,
        )

    @property
    def fixed(self) -> bool:
        return next(iter(self.made.values())).fixed

    def penalty(self) -> Tensor:
        """``λ max(0, Σ sigmoid(α) − target · N)``, zero once the mask is fixed."""
        if self.fixed:
            return torch.zeros((), device=self.model.device)
        expected = torch.stack([each.location.sigmoid().sum() for each in self.made.values()]).sum()
        return self.method.penalty * (expected - self.method.target * self.count).clamp(min=0)

    def begin_step(self, done: int, steps: int) -> bool:
        """Fix the mask once the share ``fix`` of the steps is done and a weight differs; True where it is fixed now."""
        if self.fixed or done < self.method.fix * steps:
            return False
        if not any(each.size().any() for each in self.made.values()):  # the first step of a warm-up changes nothing
            return False
        self.cut()
        with torch.no_grad():
            for each in self.made.values():
                each.w.copy_(each.value())
                each.fixed = True
                each.location.requires_grad_(False)
        return True

    def switched(self, training: bool) -> None:
        """Draw gates for a step, which begins with training mode: all passes of a step have the same ones, also those
        that checkpointing computes again. In evaluation mode the model has only the differences that would be kept.
        """
        if self.fixed:
            return
        for each in self.made.values():
            each.noise = each.kept = None
            if training:
                each.draw()
        if not training:
            self.cut()

    @torch.no_grad()
    def cut(self) -> None:
        """Keep the differences of the largest size, at most the target's share of them, and none of size zero."""
        if self.fixed:
            return
        sizes = torch.cat([each.size() for each in self.made.values()])
        most = int(self.method.target * self.count)
        kept = torch.zeros_like(sizes, dtype=torch.bool)
        kept[sizes.topk(most).indices] = True
        kept &= sizes > 0
        start = 0
        for each in self.made.values():
            each.kept = kept[start : start + each.w.numel()].view_as(each.w)
            start += each.w.numel()

    def read(self) -> dict[str, Tensor]:
        """The sparse difference: for each weight that differs, flat places and the values there."""
        self.cut()
        found = {}
        for name, each in self.made.items():
            value = each.value().flatten()
            places = value.nonzero().flatten()  # [kept]
            if len(places):
                found[name + PLACES] = copied(places.int() if value.numel() < 2**31 else places)
                found[name + VALUES] = copied(value[places])
        return found

    @torch.no_grad()
    def write(self, delta: Mapping[str, Tensor]) -> None:
        """Load a sparse difference; the mask is then fixed."""
        if unknown := [name for name in delta if name.rpartition(":")[0] not in self.made]:
            raise StoreError(
                "what was kept is of another method or another encoder",
                expected="differences of this encoder's weights",
                received=unknown[0],
                remedy="give the method and the encoder that it was trained with",
            )
        for name, each in self.made.items():
            each.w.zero_()
            each.kept, each.fixed = torch.zeros_like(each.w, dtype=torch.bool), True
            if (places := delta.get(name + PLACES)) is not None:
                there = places.long().to(each.w.device)
                each.w.view(-1)[there] = delta[name + VALUES].to(each.w)
                each.kept.view(-1)[there] = True

    def read_state(self) -> dict[str, Tensor]:
        """Differences, gates, and the mask where it is fixed."""
        found = {}
        for name, each in self.made.items():
            found[name + DIFFERENCE], found[name + GATES] = copied(each.w), copied(each.location)
            if each.fixed and each.kept is not None:
                found[name + MASK] = copied(each.kept)
        return found

    @torch.no_grad()
    def write_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`read_state` returned."""
        fixed = any(name.endswith(MASK) for name in state)
        ends = (DIFFERENCE, GATES, MASK) if fixed else (DIFFERENCE, GATES)
        refuse_other({name + end: each.w.shape for name, each in self.made.items() for end in ends}, state)
        for name, each in self.made.items():
            each.w.copy_(state[name + DIFFERENCE])
            each.location.copy_(state[name + GATES])
            each.fixed = fixed
            each.kept = state[name + MASK].to(each.w.device) if fixed else None
            each.location.requires_grad_(not fixed)

    def fold(self) -> None:
        """Weights become ``θ`` plus what is kept."""
        self.cut()
        self.model.eval()
        self._remove(True)

    def undo(self) -> None:
        self._remove(False)

    def _remove(self, changed: bool) -> None:
        for name in self.made:
            owner, _, last = name.rpartition(".")
            parametrize.remove_parametrizations(self.model.get_submodule(owner), last, leave_parametrized=changed)
