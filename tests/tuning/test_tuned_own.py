"""Fusions that are not fusionkit's, over an encoder that is trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fusionkit.errors import StoreError
from fusionkit.fit import RunsFolder, fit
from fusionkit.specs import RunSpec
from fusionkit.store import Store
from fusionkit.tuning.state import SavedState, read_state, write_state


class Normed(nn.Module):
    """A weight by two names, and a batch norm, which counts the minibatches."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.width, self.norm = hidden, nn.BatchNorm1d(hidden)
        self.gate = nn.Parameter(torch.zeros(layers))
        self.again = self.gate

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        found: Tensor = self.norm(torch.einsum("l,...ld->...d", self.again.sigmoid(), states))
        return found


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class by a path that every import finds."""
    module: Any = ModuleType("tuned_lab")
    Normed.__module__, module.Normed = "tuned_lab", Normed
    monkeypatch.setitem(sys.modules, "tuned_lab", module)


@pytest.fixture
def spec(store: Store, specs: Callable[..., list[RunSpec]]) -> RunSpec:
    (one,) = specs(store, methods=["bitfit"], fusions=["tuned_lab:Normed"])
    return one


def test_what_a_run_costs_is_measured_without_a_trace_in_its_buffers(
    store: Store, spec: RunSpec, tmp_path: Path
) -> None:
    runs = RunsFolder(tmp_path)
    (record,) = fit(store, [spec], runs, save_every="1")
    assert record["status"] == "finished"
    counted = load_file(runs.path / spec.digest / "weights.safetensors")["fusion.norm.num_batches_tracked"]
    assert int(counted) == record["steps"] * record["best_epoch"] // 2


def test_tied_weights_come_back_from_a_state(tmp_path: Path) -> None:
    tied = torch.arange(3.0)
    write_state(tmp_path / "state", SavedState({"model": {"one": tied, "other": tied}}, {}))
    found = read_state(tmp_path / "state")
    assert found is not None
    assert [found.groups["model"][name].tolist() for name in ("one", "other")] == [[0.0, 1.0, 2.0]] * 2


def test_a_state_of_other_code_is_not_gone_on_with(store: Store, spec: RunSpec, tmp_path: Path) -> None:
    runs = RunsFolder(tmp_path)
    before = {"name": "tuned_lab:Normed", "path": "tuned_lab:Normed", "module": "tuned_lab", "sha256": "0" * 64}
    runs.state_path(spec).parent.mkdir(parents=True)
    write_state(runs.state_path(spec), SavedState({}, {"done": 1, "sources": [before]}))
    with pytest.raises(StoreError, match="cannot be resumed from") as caught:
        fit(store, [spec], runs)
    assert caught.value.received == "one of other code"
    assert "tuned_lab:Normed" in str(caught.value.expected)
