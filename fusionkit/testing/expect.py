"""Helpers of the checks: comparing, import paths, training side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusionkit.dataset.batch import Batch
from fusionkit.errors import UsageError
from fusionkit.fit.model.fused import FusedModel, build_model
from fusionkit.fit.vectorized.looped import LoopedRuns
from fusionkit.fit.vectorized.stack import Stack, stack_of
from fusionkit.registry import load as imported
from fusionkit.specs import RunSpec

EXACT: Any = {"rtol": 1e-11, "atol": 1e-11}  # in float64
STEPS, ALIKE = 5, 1e-9


def expect(holds: bool, what: str) -> None:
    """Raise AssertionError unless ``holds``, even where Python removes ``assert`` statements."""
    if not holds:
        raise AssertionError(what)


def expect_close(found: Any, expected: Any, what: str, within: Any = EXACT) -> None:
    """Raise AssertionError unless two tensors or arrays have the same shape and nearly the same numbers, no NaN.

    Args:
        within: ``rtol`` and ``atol``.
    """
    one, other = (x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (found, expected))
    expect(one.shape == other.shape, f"{what}: shape {one.shape}, expected {other.shape}")
    np.testing.assert_allclose(one, other, equal_nan=False, err_msg=what, **within)


def path_of(given: type | str) -> str:
    """The import path that a sweep needs for a class; a text is returned as it is.

    Raises:
        AssertionError: no other process could import the class.
    """
    if isinstance(given, str):
        return given
    path = f"{given.__module__}:{given.__qualname__}"
    try:
        found = imported(path).value
    except UsageError as error:
        raise AssertionError(f"workers import it by its path, and {error}") from error
    expect(found is given, f"{path} is another object: workers import it by its path")
    return path


def expect_alone_and_stacked(spec: RunSpec, sizes: tuple[int, int, int, int], batches: Sequence[Batch]) -> None:
    """Check that three runs trained together end with the weights that each has alone.

    Args:
        sizes: layers, hidden, classes, sides. batches: float64, one per step.
    """
    specs = [dataclasses.replace(spec, init_seed=seed, lr=rate) for seed, rate in ((0, 2e-3), (1, 1e-3), (2, 5e-3))]
    stack = stack_of(specs, _models(specs, sizes))
    if isinstance(stack, LoopedRuns):  # one after another: each is alone
        return
    together = _trained(stack, batches)
    for run, one in enumerate(specs):
        alone = _trained(LoopedRuns([one], _models([one], sizes)), batches)
        learned, stacked = alone.weights(0), together.weights(run)
        expect(learned.keys() == stacked.keys(), "a stack of runs has other weights than a run alone")
        for name, weights in learned.items():
            far = float((weights - stacked[name]).norm() / weights.norm().clamp(min=1e-3))
            expect(far < ALIKE, f"{name} of a run in a stack is {far:.2g} of its size from the run's alone")
        ours, its = alone.decide(batches[0])[0].double(), together.decide(batches[0])[run].double()
        expect(torch.allclose(ours, its), "a stack decides otherwise than a run alone")


def _models(specs: Sequence[RunSpec], sizes: tuple[int, int, int, int]) -> list[FusedModel]:
    layers, hidden, classes, sides = sizes
    return [build_model(spec, layers, hidden, classes, sides).double() for spec in specs]


def _trained(stack: Stack, batches: Sequence[Batch]) -> Stack:
    for batch in batches[:STEPS]:
        stack.step([batch], [spec.lr for spec in stack.specs])
    return stack
