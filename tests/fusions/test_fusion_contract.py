"""What every fusion of the table keeps, against formulas written again in NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from fusionkit.fusions import FUSIONS, build_fusion, fusion_layers

Array = NDArray[np.float64]
Weights = dict[str, Array]

LAYERS, HIDDEN = 5, 6
SPELLING = {"layer": "layer:0"}  # names that need an argument


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def attention_weights(z: Array, w: Weights) -> Array:
    return softmax((z * w["query"]).sum(-1))


def linear_weights(z: Array, w: Weights) -> Array:
    return np.broadcast_to(softmax(w["weight"]), z.shape[:-1])


def concat(z: Array, w: Weights) -> Array:
    side_by_side = np.concatenate([z[..., j, :] for j in range(z.shape[-2])], axis=-1)
    return np.asarray(side_by_side @ w["project.weight"].T + w["project.bias"])


# The formula of each fusion: states [..., layers, hidden] and its weights -> [..., width].
FORMULAS: dict[str, Callable[[Array, Weights], Array]] = {
    "last": lambda z, w: z[..., -1, :],
    "layer": lambda z, w: z[..., 0, :],
    "linear": lambda z, w: w["gamma"] * (linear_weights(z, w)[..., None] * z).sum(-2),
    "concat": concat,
    "attention": lambda z, w: (attention_weights(z, w)[..., None] * z).sum(-2),
}
# The weight of each layer, where a fusion has such weights.
LAYER_WEIGHTS: dict[str, Callable[[Array, Weights], Array]] = {
    "linear": linear_weights,
    "attention": attention_weights,
}
# Trainable parameters over an encoder of 24 layers of width 1024, all layers stored.
COUNTS_AT_BERT_LARGE = {
    "last": 0,
    "layer": 0,
    "linear": 25 + 1,
    "concat": 24 * 1024 * 256 + 256,
    "attention": 1024,
}
# Fusions whose fresh weights give the plain mean of the layers.
START_AS_MEAN = {"linear", "attention"}
START_AT_RANDOM = {"concat"}

every_fusion = pytest.mark.parametrize("name", list(FUSIONS))


def built(name: str, seed: int = 0) -> Any:
    """A float64 fusion whose weights are all random, none as it starts."""
    fusion = build_fusion(SPELLING.get(name, name), LAYERS, HIDDEN).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return fusion


def states_of(*leading: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, LAYERS, HIDDEN, generator=generator, dtype=torch.float64)


def weights_of(fusion: Any) -> Weights:
    return {name: value.detach().numpy() for name, value in fusion.named_parameters()}


def test_every_contract_test_sees_every_fusion() -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    cases = [mark.args[1] for test in tests for mark in getattr(test, "pytestmark", []) if mark.args[0] == "name"]
    assert len(cases) >= 11
    assert all(len(names) == len(FUSIONS) and set(names) == set(FUSIONS) for names in cases)


def test_formulas_and_counts_are_written_for_exactly_the_table() -> None:
    assert set(FORMULAS) == set(FUSIONS)
    assert set(COUNTS_AT_BERT_LARGE) == set(FUSIONS)


@pytest.mark.parametrize("leading", [(), (1,), (7,), (0,), (2, 3), (2, 1, 3)], ids=str)
@every_fusion
def test_output_is_the_formula_in_any_leading_shape(name: str, leading: tuple[int, ...]) -> None:
    fusion, states = built(name), states_of(*leading)
    before = states.clone()
    got = fusion(states)
    expected = FORMULAS[name](states.numpy(), weights_of(fusion))
    assert got.shape == (*leading, fusion.width)
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(states, before)


@every_fusion
def test_parameter_count_at_bert_large_is_exact(name: str) -> None:
    spelled = SPELLING.get(name, name)
    layers = fusion_layers(spelled, tuple(range(25)), 25)
    fusion = build_fusion(spelled, len(layers), 1024)
    assert sum(p.numel() for p in fusion.parameters() if p.requires_grad) == COUNTS_AT_BERT_LARGE[name]
    assert not list(fusion.buffers())


@every_fusion
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    fusion = build_fusion(SPELLING.get(name, name), 3, 4).double()
    names = [n for n, _ in fusion.named_parameters()]
    generator = torch.Generator().manual_seed(2)
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in [torch.Size([2, 3, 4])] + [p.shape for p in fusion.parameters()]
    ]

    def output(states: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        # The first columns are enough for concat's 256.
        return torch.func.functional_call(fusion, values, (states,))[..., :4]  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(output, inputs)


@every_fusion
def test_every_parameter_gets_a_gradient(name: str) -> None:
    fusion = built(name)
    loss = fusion(states_of(7)).square().sum()
    for parameter in fusion.parameters():
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
        assert gradient.abs().sum() > 0


@every_fusion
def test_a_row_does_not_see_its_neighbours(name: str) -> None:
    fusion, states = built(name), states_of(6)
    alone = fusion(states)[2]
    states[torch.arange(6) != 2] = torch.nan
    torch.testing.assert_close(fusion(states)[2], alone, rtol=1e-12, atol=1e-12)


@every_fusion
def test_a_batch_equals_its_rows_one_by_one(name: str) -> None:
    fusion, states = built(name), states_of(3, 4)
    one_by_one = torch.stack([torch.stack([fusion(row) for row in rows]) for rows in states])
    torch.testing.assert_close(fusion(states), one_by_one, rtol=1e-12, atol=1e-12)


@every_fusion
def test_a_seed_gives_the_same_weights_again(name: str) -> None:
    def fresh(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return build_fusion(SPELLING.get(name, name), LAYERS, HIDDEN).state_dict()

    first, again, other = fresh(3), fresh(3), fresh(4)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    same = all(torch.equal(first[key], other[key]) for key in first)
    assert same == (name not in START_AT_RANDOM)


@every_fusion
def test_weights_survive_a_safetensors_file(name: str, tmp_path: Path) -> None:
    fusion, other, states = built(name, seed=5), built(name, seed=6), states_of(7)
    save_file(fusion.state_dict(), tmp_path / "fusion.safetensors")
    differs = not torch.equal(fusion(states), other(states))
    assert differs == bool(fusion.state_dict())
    other.load_state_dict(load_file(tmp_path / "fusion.safetensors"))
    assert torch.equal(fusion(states), other(states))


@every_fusion
def test_the_order_of_states_in_memory_does_not_matter(name: str) -> None:
    fusion, states = built(name), states_of(3, 4)
    layer_first = states.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    hidden_first = states.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0)
    assert not layer_first.is_contiguous()
    assert not hidden_first.is_contiguous()
    for view in (layer_first, hidden_first):
        torch.testing.assert_close(fusion(view), fusion(states), rtol=1e-12, atol=1e-12)


@every_fusion
def test_layer_weights_are_the_softmax_and_sum_to_one(name: str) -> None:
    fusion, states = built(name), states_of(2, 3)
    weights = fusion.layer_weights(states)
    if name not in LAYER_WEIGHTS:
        assert weights is None
        return
    assert weights.shape == (2, 3, LAYERS)
    expected = LAYER_WEIGHTS[name](states.numpy(), weights_of(fusion))
    np.testing.assert_allclose(weights.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(-1).detach().numpy(), np.ones((2, 3)), rtol=1e-12)


@every_fusion
def test_fresh_weights_give_the_mean_of_the_layers_where_promised(name: str) -> None:
    fusion, states = build_fusion(SPELLING.get(name, name), LAYERS, HIDDEN).double(), states_of(7)
    got, mean = fusion(states).detach().numpy(), states.numpy().mean(-2)
    is_mean = got.shape == mean.shape and np.allclose(got, mean, rtol=1e-12, atol=1e-12)
    assert is_mean == (name in START_AS_MEAN)
