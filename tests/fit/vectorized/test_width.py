"""How many runs are stacked, and what a sweep says where memory makes stacks narrower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionkit.dataset.batch import Batch
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.joint import model_of
from fusionkit.fit.vectorized import width
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import stack_of
from fusionkit.fit.vectorized.width import STACK_BYTES, stack_ranges, width_of
from fusionkit.specs import RunSpec
from fusionkit.store import Store


def test_stacks_are_as_wide_as_gains_and_memory_allow() -> None:
    run, states = 4 << 20, 3 << 20
    unit = [run] * 48
    assert width_of(run, states, unit, None) == STACK_BYTES // (4 * run) == 16
    held = 4 * sum(unit)
    assert width_of(run, states, unit, held + 8 * (run + states)) == 8
    assert width_of(run, states, unit, held + 8 * (run + states) - 1) == 7
    assert width_of(run, states, unit, 0) == 1
    assert width_of(run, states, unit, held + 20 * (run + states)) == 16
    assert width_of(run, states, unit, held + 20 * (run + states), cached=False) == 20
    assert width_of(run, states, unit, 1 << 50, cached=False) == 48


@pytest.mark.parametrize(
    ("count", "width", "together", "sizes"),
    [
        (4, 3, 1, [2, 2]), (5, 3, 1, [2, 3]), (6, 3, 1, [3, 3]), (2, 9, 1, [2]), (3, 1, 1, [1] * 3),
        (24, 10, 3, [6, 9, 9]), (24, 23, 3, [12, 12]), (24, 2, 3, [2] * 12), (7, 4, 3, [3, 4]), (6, 6, 6, [6]),
    ],
)  # fmt: skip
def test_stacks_of_one_shape_are_of_one_size_or_nearly(count: int, width: int, together: int, sizes: list[int]) -> None:
    stacks = stack_ranges(count, width, together)
    assert [len(stack) for stack in stacks] == sizes
    assert [run for stack in stacks for run in stack] == list(range(count))


def test_a_sweep_short_of_memory_says_so_once_and_gives_the_same(
    corpus_store: Callable[[str], Store], tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = corpus_store("words")
    chosen: dict[str, Any] = {"fusions": ("linear",), "head": "tagger", "shots": (2,), "epochs": (2,), "dropout": 0.1}
    (base,) = expand(store, task="tagging", seeds=1, **chosen)
    specs = [replace(base, init_seed=seed) for seed in range(5)]
    plain = fit(store, specs, RunsFolder(tmp_path / "plain"), watch)
    assert not [line for line in watch.said if "memory" in line]
    monkeypatch.setattr(width, "spare_memory", lambda: 0)
    narrow = fit(store, specs, RunsFolder(tmp_path / "narrow"), watch)
    assert [line for line in watch.said if "memory" in line] == ["stacks of at most 1 run: memory"]
    assert [each["scores"] for each in narrow] == [each["scores"] for each in plain]


def test_a_step_that_fails_leaves_the_common_random_numbers_as_they_were() -> None:
    spec = RunSpec(store="s", task="t", label="l", fusion="attention", head="tagger", dropout=0.3)
    alone = stack_of([spec], [model_of(spec, 3, 16, {"": 5}, 1)])
    assert isinstance(alone, LoopedRuns)
    offsets = torch.arange(21)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="size"):
        alone.step([Batch(torch.zeros(20, 3, 7), offsets, torch.zeros(20, dtype=torch.int64), None, offsets)], [1e-3])
    assert torch.equal(torch.get_rng_state(), before)
