"""What every fusion of the table keeps: the contract of ``fusionkit.testing``, and what fusionkit says of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusionkit.fusions
from fusionkit.fusions import (
    FUSIONS,
    build_fusion,
    fusion_class,
    fusion_kind,
    fusion_layers,
    fusion_name,
    sees_examples,
)
from fusionkit.testing import FUSION_CHECKS, FusionCase, check_fusion
from fusionkit.testing.fusion_checks import HIDDEN, LAYERS, OFFSETS, states_of

FOLDER = Path(fusionkit.fusions.__file__).parent


def files_of_fusions() -> set[str]:
    """The modules in the folder that define what is built for a number of layers of a width."""
    found = set()
    for path in FOLDER.glob("*.py"):
        classes = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
        methods = [each for one in classes for each in one.body if isinstance(each, ast.FunctionDef)]
        given = [[argument.arg for argument in each.args.args] for each in methods if each.name == "__init__"]
        found |= {path.stem} if ["self", "layers", "hidden"] in given else set()
    return found


def test_the_suites_see_every_file_every_fusion_and_every_option(cases: list[Any]) -> None:
    assert {FUSIONS[name].partition(":")[0].rpartition(".")[2] for name in FUSIONS} == files_of_fusions()
    assert len(files_of_fusions()) == len(FUSIONS) > 5
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    assert {fusion_kind(name) for name in names} == set(FUSIONS)
    tried = {
        (fusion_kind(name), part.partition("=")[0]) for name in names for part in name.partition(":")[2].split(",")
    }
    optional = {(kind, name) for kind in FUSIONS for name, each in options_of(kind).items() if not each.required}
    assert optional <= tried
    assert len(set(FUSION_CHECKS)) == len(FUSION_CHECKS) > 12


def options_of(kind: str) -> dict[str, Any]:
    return fusionkit.fusions.options_of(fusion_class(kind))


@pytest.mark.parametrize("check", FUSION_CHECKS, ids=lambda check: check.__name__)
def test_every_fusion_keeps_the_contract(check: Callable[[FusionCase], None], case: Any) -> None:
    check(case.kept)


def test_one_call_tries_the_whole_contract(cases: list[Any]) -> None:
    kept = next(case.kept for case in cases if case.name == "linear")
    check_fusion("linear", parameters=kept.parameters, formula=kept.formula, layer_weights=kept.layer_weights)
    with pytest.raises(AssertionError, match="14 parameters over 13 × 8, declared 13"):
        check_fusion(fusion_class("linear"), parameters=lambda layers, hidden: layers)


def test_default_layers_are_the_papers(case: Any) -> None:
    assert fusion_layers(case.name, tuple(range(7)), 7) == case.reads


def test_a_name_and_what_it_says_of_rows(case: Any) -> None:
    assert fusion_name(case.name) == case.name
    assert sees_examples(case.name) == case.whole


def test_another_seed_gives_other_weights_where_any_are_drawn(case: Any) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        fusion: Any = build_fusion(case.name, LAYERS, HIDDEN)
        return fusion.state_dict()  # type: ignore[no-any-return]

    first, other = fresh(3), fresh(4)
    assert all(torch.equal(first[key], other[key]) for key in first) != case.drawn


def test_the_temperature_is_what_scores_are_divided_by(case: Any) -> None:
    assert getattr(case.kept.build(), "temperature", None) == case.temperature


def test_fresh_weights_give_the_mean_of_the_layers_where_promised(case: Any) -> None:
    torch.manual_seed(0)
    fusion: Any = build_fusion(case.name, LAYERS, HIDDEN)
    states = states_of(9)
    found, mean = fusion.double()(states, OFFSETS).detach().numpy(), states.numpy().mean(-2)
    is_mean = found.shape == mean.shape and np.allclose(found, mean, rtol=1e-7, atol=1e-7)  # 1 / layers is float32
    assert is_mean == case.mean
