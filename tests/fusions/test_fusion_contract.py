"""What every fusion of the table keeps, against formulas written again in NumPy (``conftest.py``)."""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fusionkit.fusions import FUSIONS, build_fusion, fusion_layers, sees_examples

LAYERS, HIDDEN = 5, 6
OFFSETS = torch.tensor([0, 3, 3, 8, 9])  # the second example has no rows
EXACT: Any = {"rtol": 1e-11, "atol": 1e-11}


def built(case: Any, seed: int = 0, layers: int = LAYERS) -> Any:
    """A float64 fusion whose weights are all random, none as it starts."""
    torch.manual_seed(seed)
    fusion: Any = build_fusion(case.name, layers, HIDDEN)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return fusion.double()


def states_of(*leading: int, seed: int = 1, layers: int = LAYERS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, layers, HIDDEN, generator=generator, dtype=torch.float64)


def weights_of(fusion: Any) -> dict[str, Any]:
    return {name: value.detach().numpy() for name, value in fusion.state_dict().items()}


def examples(rows: Tensor) -> list[Tensor]:
    """The rows of each example, one after another."""
    return [rows[a:b] for a, b in pairwise(OFFSETS.tolist())]


def test_every_contract_test_sees_every_fusion_and_every_option(cases: list[Any]) -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    assert sum("case" in inspect.signature(test).parameters for test in tests) >= 15
    names = [case.name for case in cases]
    assert len(names) == len(set(names)) == 17
    assert {name.partition(":")[0] for name in names} == set(FUSIONS)


@pytest.mark.parametrize("layers", [1, 2, LAYERS])
def test_output_is_the_formula_for_each_example(case: Any, layers: int) -> None:
    fusion, states = built(case, layers=layers), states_of(9, layers=layers)
    before = states.clone()
    found = fusion(states, OFFSETS)
    assert found.shape == (9, fusion.width)
    for ours, rows in zip(examples(found), examples(states), strict=True):
        if len(rows):
            np.testing.assert_allclose(ours.detach(), case.output(rows.numpy(), weights_of(fusion)), **EXACT)
    assert torch.equal(states, before)


@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 3), (2, 1, 3)], ids=str)
def test_rows_may_have_any_leading_shape_where_they_are_fused_alone(case: Any, leading: tuple[int, ...]) -> None:
    fusion, states = built(case), states_of(*leading)
    if case.whole:
        with pytest.raises(TypeError, match="offsets"):
            fusion(states)
        return
    expected = case.output(states.numpy(), weights_of(fusion))
    assert fusion(states).shape == (*leading, fusion.width)
    np.testing.assert_allclose(fusion(states).detach(), expected, **EXACT)


def test_parameter_count_at_bert_large_is_exact(case: Any) -> None:
    layers = fusion_layers(case.name, tuple(range(25)), 25)
    with torch.device("meta"):
        fusion = build_fusion(case.name, len(layers), 1024)
    assert sum(p.numel() for p in fusion.parameters() if p.requires_grad) == case.count


def test_gradients_are_those_of_finite_differences(case: Any) -> None:
    torch.manual_seed(2)
    fusion: Any = build_fusion(case.name, 3, 4)
    fusion = fusion.double()
    names, offsets = [name for name, _ in fusion.named_parameters()], torch.tensor([0, 2, 2, 3])
    generator = torch.Generator().manual_seed(2)
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in [torch.Size([3, 3, 4])] + [p.shape for p in fusion.parameters()]
    ]

    def output(states: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        # The first columns are enough for concat's 256.
        return torch.func.functional_call(fusion, values, (states, offsets))[..., :4]  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(output, inputs)


def test_every_parameter_gets_a_gradient(case: Any) -> None:
    fusion = built(case)
    parameters = dict(fusion.named_parameters())
    loss = fusion(states_of(9), OFFSETS).square().sum()
    found = torch.autograd.grad(loss, list(parameters.values())) if parameters else ()
    sizes = {name: float(gradient.abs().max()) for name, gradient in zip(parameters, found, strict=True)}
    assert all(size > 1e-6 for name, size in sizes.items() if name not in case.idle)
    assert all(sizes[name] < 1e-9 for name in case.idle)


def test_a_batch_equals_its_examples_one_by_one(case: Any) -> None:
    """The lengths differ: what pads the shorter ones must not be seen."""
    fusion, states = built(case), states_of(9)
    one_by_one = [fusion(rows, torch.tensor([0, len(rows)])) for rows in examples(states)]
    assert [len(rows) for rows in one_by_one] == [3, 0, 5, 1]
    torch.testing.assert_close(fusion(states, OFFSETS), torch.cat(one_by_one), **EXACT)


def test_gradients_of_an_example_are_those_it_has_alone(case: Any) -> None:
    fusion, states = built(case), states_of(9)
    learned = [*fusion.parameters(), states.requires_grad_()]
    together = torch.autograd.grad(fusion(states, OFFSETS)[:3].square().sum(), learned)
    alone = torch.autograd.grad(fusion(states[:3], torch.tensor([0, 3])).square().sum(), learned)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_no_example_sees_another(case: Any) -> None:
    fusion, states = built(case), states_of(9)
    expected = fusion(states, OFFSETS)[3:8]
    states[:3], states[8:] = torch.nan, torch.nan
    torch.testing.assert_close(fusion(states, OFFSETS)[3:8], expected, **EXACT)


def test_a_row_sees_its_neighbours_only_where_the_fusion_says_so(case: Any) -> None:
    fusion, states = built(case), states_of(9)
    expected = fusion(states, OFFSETS)[4]
    states[5] += 1.0
    same = torch.allclose(fusion(states, OFFSETS)[4], expected, **EXACT)
    assert same != case.whole
    assert sees_examples(case.name) == case.whole


def test_a_batch_without_rows_is_fused_to_none(case: Any) -> None:
    fusion = built(case)
    assert fusion(states_of(0), torch.tensor([0, 0, 0])).shape == (0, fusion.width)


def test_a_seed_gives_the_same_weights_again(case: Any) -> None:
    def fresh(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        fusion: Any = build_fusion(case.name, LAYERS, HIDDEN)
        return fusion.state_dict()  # type: ignore[no-any-return]

    first, again, other = fresh(3), fresh(3), fresh(4)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    same = all(torch.equal(first[key], other[key]) for key in first)
    assert same != case.drawn


def test_weights_survive_a_safetensors_file(case: Any, tmp_path: Path) -> None:
    fusion, other, states = built(case, seed=5), built(case, seed=6), states_of(9)
    save_file(fusion.state_dict(), tmp_path / "fusion.safetensors")
    differs = not torch.equal(fusion(states, OFFSETS), other(states, OFFSETS))
    assert differs == bool(fusion.state_dict())
    other.load_state_dict(load_file(tmp_path / "fusion.safetensors"))
    assert torch.equal(fusion(states, OFFSETS), other(states, OFFSETS))


def test_the_order_of_states_in_memory_does_not_matter(case: Any) -> None:
    fusion, states = built(case), states_of(9)
    layer_first = states.transpose(0, 1).contiguous().transpose(0, 1)
    hidden_first = states.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    for view in (layer_first, hidden_first):
        assert not view.is_contiguous()
        torch.testing.assert_close(fusion(view, OFFSETS), fusion(states, OFFSETS), **EXACT)


def test_fusions_of_several_runs_act_as_one_stack(case: Any) -> None:
    fusions, states = [built(case, seed=seed) for seed in (7, 8)], states_of(9)
    expected = torch.stack([fusion(states, OFFSETS) for fusion in fusions])
    values = torch.func.stack_module_state(fusions)
    if not values[0]:
        assert torch.equal(*expected)
        return

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(fusions[0], (parameters, buffers), (states, OFFSETS))  # type: ignore[no-any-return]

    torch.testing.assert_close(torch.func.vmap(one)(*values), expected, **EXACT)


def test_layer_weights_are_the_formulas_and_sum_to_one(case: Any) -> None:
    fusion, states = built(case), states_of(9)
    weights = fusion.layer_weights(states)
    if case.weights is None:
        assert weights is None
        return
    assert weights.shape == (9, LAYERS)
    np.testing.assert_allclose(weights.detach(), case.weights(states.numpy(), weights_of(fusion)), **EXACT)
    np.testing.assert_allclose(weights.sum(-1).detach(), np.ones(9), rtol=1e-12)


def test_the_temperature_is_what_scores_are_divided_by(case: Any) -> None:
    assert getattr(built(case), "temperature", None) == case.temperature


def test_fresh_weights_give_the_mean_of_the_layers_where_promised(case: Any) -> None:
    torch.manual_seed(0)
    fusion: Any = build_fusion(case.name, LAYERS, HIDDEN)
    states = states_of(9)
    found, mean = fusion.double()(states, OFFSETS).detach().numpy(), states.numpy().mean(-2)
    is_mean = found.shape == mean.shape and np.allclose(found, mean, rtol=1e-12, atol=1e-12)
    assert is_mean == case.mean
