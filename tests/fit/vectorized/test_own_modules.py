"""Modules that are not fusionkit's: stacked where that gives the same, else one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.dataset.batch import Batch
from fusionkit.dataset.task_data import TaskData
from fusionkit.fit.loader.gpu import GpuLoader
from fusionkit.fit.loader.minibatches import SeparateLoaders
from fusionkit.fit.model.fused import build_model
from fusionkit.fit.train.inputs import UnitInputs
from fusionkit.fit.vectorized.readout import chain_of, chained
from fusionkit.fit.vectorized.stack import can_stack, stack_of
from fusionkit.heads.softmax import Softmax
from fusionkit.specs import RunSpec
from fusionkit.testing import check_fusion, check_head


class Gated(nn.Module):
    """A gate a layer."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width = hidden
        self.gate = nn.Parameter(torch.zeros(layers))

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        return torch.einsum("l,...ld->...d", self.gate.sigmoid(), states)


class Reading(Gated):
    """It asks for a number of a weight, which vmap cannot give."""

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        return super().forward(states) * (1.0 if self.gate.sum().item() < 1e9 else 2.0)


class Dropping(Gated):
    """Dropout as a function: a stack has no stream of random numbers a run for it."""

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        return functional.dropout(super().forward(states), 0.1, self.training)


class Tied(Gated):
    """One weight by two names."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__(layers, hidden)
        self.again = self.gate


class Recurrent(Gated):
    """A GRU over the layers, which vmap cannot stack."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__(layers, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        gated = states * self.gate.sigmoid().unsqueeze(1)
        flat = gated.reshape(-1, *gated.shape[-2:])
        if not len(flat):
            return states.sum(-2)
        return self.gru(flat)[1][0].reshape(*states.shape[:-2], -1)  # type: ignore[no-any-return]


class Normed(Gated):
    """Its batch norm counts the minibatches."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__(layers, hidden)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        return self.norm(super().forward(states))  # type: ignore[no-any-return]


class Colder(Softmax):
    """A softmax head whose loss is not the usual one: what is written out for those must not be used for it."""

    tasks = ("tagging",)

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__(nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes)))

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:
        return 0.5 * super().forward(states, offsets)

    def loss(self, scores: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
        return 3 * super().loss(scores, targets, offsets)


class Neighbours(nn.Linear):
    """The scores of a row are also of the row before it."""

    across_rows = True

    def forward(self, states: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(states + states.roll(1, 0))


class Looking(nn.Module):
    """A name of a softmax head over such scores."""

    tasks = ("tagging",)

    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        return Softmax(Neighbours(width, classes))


class Wide(Looking):
    """A name of a softmax head that can be built only at some widths."""

    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        assert width % 4 == 0
        return Softmax(nn.Linear(width, classes))


class Twice(Looking):
    """A head function whose activation, or layer, stands in two places."""

    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        shared = nn.ReLU()
        return Softmax(nn.Sequential(nn.Linear(width, 8), shared, nn.Linear(8, 8), shared, nn.Linear(8, classes)))


class SameLayer(Looking):
    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        shared = nn.Linear(width, width)
        return Softmax(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(width, classes)))


class RowDropout(nn.Dropout):
    """It drops whole rows."""

    def forward(self, input: Tensor) -> Tensor:
        return input * torch.rand(len(input), 1).gt(self.p) if self.training else input


class DroppingRows(Looking):
    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        return Softmax(nn.Sequential(RowDropout(0.5), nn.Linear(width, classes)))


class AlphaDropping(Looking):
    def __new__(cls, width: int, classes: int, dropout: float) -> Any:
        return Softmax(nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(width, classes)))


class Leaking(Gated):
    """It sees other examples."""

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        fused = super().forward(states)
        return fused - fused.mean(0) if fused.dim() == 2 and len(fused) else fused


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """These classes by a path that every import finds."""
    module: Any = ModuleType("own_lab")
    for name, value in list(globals().items()):
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ in (__name__, "own_lab"):
            value.__module__ = "own_lab"
            setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "own_lab", module)


def model_of(fusion: str, head: str = "linear-tagger") -> Any:
    return build_model(RunSpec(store="", task="tagging", label="", fusion=fusion, head=head), 3, 8, 4)


@pytest.mark.parametrize(
    ("fusion", "stacks"),
    [
        ("Gated", True),
        ("Reading", False),
        ("Dropping", False),
        ("Tied", False),
        ("Recurrent", False),
        ("Normed", False),
    ],
)
def test_what_vmap_does_not_know_is_trained_one_after_another(fusion: str, stacks: bool) -> None:
    assert can_stack(model_of(f"own_lab:{fusion}")) is stacks


@pytest.mark.parametrize(
    ("head", "stacks"), [("Twice", True), ("SameLayer", False), ("DroppingRows", False), ("AlphaDropping", False)]
)
def test_a_head_made_of_torch_modules_is_stacked_only_where_that_gives_the_same(head: str, stacks: bool) -> None:
    assert can_stack(model_of("linear", f"own_lab:{head}")) is stacks


def test_an_activation_that_stands_twice_in_a_head_acts_twice() -> None:
    score = model_of("linear", "own_lab:Twice").head.get_submodule("score")
    steps, rows = chain_of(score), torch.randn(5, 8)
    assert steps is not None
    weights = {name: weight.detach()[None] for name, weight in score.named_parameters()}
    torch.testing.assert_close(chained(steps, weights, rows)[0], score(rows).detach())


@pytest.mark.parametrize("fusion", [Gated, Reading])
def test_a_fusion_of_somebody_s_keeps_the_contract(fusion: type) -> None:
    check_fusion(fusion, parameters=lambda layers, hidden: layers)


def test_a_head_that_inherits_is_not_taken_for_what_it_inherits_from() -> None:
    assert can_stack(model_of("linear", "own_lab:Colder"))
    check_head(Colder)


@pytest.mark.parametrize(
    ("head", "kind"),
    [("linear-tagger", GpuLoader), ("own_lab:Looking", SeparateLoaders), ("own_lab:Wide", SeparateLoaders)],
)
def test_no_minibatch_is_padded_for_a_head_whose_rows_see_each_other(
    toy: Callable[..., TaskData], head: str, kind: type
) -> None:
    data = toy(words=True)
    draws = {0: data.train.subset(np.flatnonzero(np.diff(data.train.offsets) > 0))}
    spec = RunSpec(store="", task="tagging", label="", fusion="linear", head=head)
    inputs = UnitInputs([spec], draws, (0, 1, 2), data, 6, 1, torch.device("meta"))
    assert isinstance(inputs.loader, kind)


def test_a_fusion_that_sees_other_examples_is_found_out() -> None:
    with pytest.raises(AssertionError, match="leading shape"):
        check_fusion(Leaking)


def test_a_class_that_no_worker_could_import_is_found_out() -> None:
    class Local(Gated):
        pass

    with pytest.raises(AssertionError, match="workers import it by its path"):
        check_fusion(Local)


def test_nothing_of_a_run_moves_once_its_steps_are_made() -> None:
    """Not its weights, and not what a batch norm counts."""
    spec = RunSpec(store="", task="tagging", label="", fusion="own_lab:Normed", head="linear-tagger", lr=1e-2)
    stack = stack_of([spec, replace(spec, max_steps=1)], [model_of(spec.fusion), model_of(spec.fusion)])
    offsets = torch.tensor([0, 5])
    batch = Batch(torch.randn(5, 3, 8), offsets, torch.tensor([0, 1, 2, 3, 0]), None, offsets)
    stack.step([batch], [1e-2, 1e-2])
    before = [stack.weights(run) for run in range(2)]
    stack.step([batch], [1e-2, None])
    goes, stays = (
        {name for name, value in stack.weights(run).items() if not value.equal(before[run][name])} for run in range(2)
    )
    assert stays == set()
    assert {"fusion.gate", "fusion.norm.running_mean", "fusion.norm.num_batches_tracked"} <= goes
