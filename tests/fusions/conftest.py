"""Every fusion and its options with its formula in NumPy, its number of parameters and the claims about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionkit.testing import FusionCase
from fusionkit.testing.fusion_checks import HIDDEN, LAYERS, Formula

Array = NDArray[np.float64]
Weights = dict[str, Array]


def softmax(scores: Array, axis: int = -1) -> Array:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))))


def affine(x: Array, w: Weights, name: str) -> Array:
    return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])


def normal(x: Array, epsilon: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon))


def layer_norm(x: Array, w: Weights, name: str, epsilon: float = 1e-5) -> Array:
    return np.asarray(normal(x, epsilon) * w[f"{name}.weight"] + w[f"{name}.bias"])


def mixed(weights: Array, z: Array) -> Array:
    """``Σ_j w_j z_j`` from ``[…, layers]`` and ``[…, layers, hidden]``."""
    return np.asarray((weights[..., None] * z).sum(-2))


def linear_weights(z: Array, w: Weights) -> Array:
    return np.broadcast_to(softmax(w["weight"]), z.shape[:-1])


def attention_weights(z: Array, w: Weights, temperature: float = 1.0) -> Array:
    return softmax((z * w["query"]).sum(-1) / temperature)


def concat(z: Array, w: Weights) -> Array:
    side_by_side = np.concatenate([z[..., j, :] for j in range(z.shape[-2])], axis=-1)
    return affine(side_by_side, w, "project")


def concat_affine(z: Array, w: Weights) -> Array:
    return np.asarray(sum(affine(z[..., n, :], w, f"maps.{n}") for n in range(z.shape[-2])))


def bottleneck(x: Array, w: Weights, name: str) -> Array:
    return affine(layer_norm(gelu(affine(x, w, f"{name}.0")), w, f"{name}.2"), w, f"{name}.3")


def dwatt_weights(z: Array, w: Weights, temperature: float = 1.0) -> Array:
    above = z[..., -1, :] + bottleneck(z[..., -1, :], w, "query")
    query = 1 + np.where(above > 0, above, np.exp(np.minimum(above, 0)) - 1)
    keys = affine(w["positions"], w, "key")
    return softmax(np.einsum("...d,nd->...n", query, keys) / temperature)


def dwatt(z: Array, w: Weights, temperature: float = 1.0) -> Array:
    s = dwatt_weights(z, w, temperature)
    values = [layer_norm(bottleneck(z[..., n, :], w, f"values.{n}.0"), w, f"values.{n}.1") for n in range(z.shape[-2])]
    return z[..., -1, :] + mixed(s, np.stack(values, -2))


def element_wise(z: Array, w: Weights) -> Array:
    return np.asarray((softmax(w["weight"], axis=0) * z).sum(-2))


def element_wise_weights(z: Array, w: Weights) -> Array:
    return np.broadcast_to(softmax(w["weight"], axis=0).mean(1), z.shape[:-1])


def mlp_scores(z: Array, w: Weights) -> Array:
    return np.asarray((np.tanh(affine(z, w, "inner")) * w["outer"]).sum(-1))


def mlp_weights(z: Array, w: Weights) -> Array:
    return softmax(mlp_scores(z, w))


def depth_lstm(z: Array, w: Weights) -> Array:
    h = c = np.zeros_like(z[..., 0, :])
    for j in range(z.shape[-2]):
        i, f, g, o = np.split(affine(z[..., j, :], w, "input") + affine(h, w, "memory"), 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return np.asarray(h)


def transformer_layer(x: Array, w: Weights, name: str) -> Array:
    """A Transformer layer with one attention head, over one example, ``[rows, width]``."""
    q, k, v = (affine(x, w, f"{name}.{part}") for part in ("query", "key", "value"))
    attended = softmax(q @ k.T / math.sqrt(x.shape[-1])) @ v
    a = layer_norm(x + affine(attended, w, f"{name}.out"), w, f"{name}.attention_norm", 1e-12)
    return layer_norm(a + affine(gelu(affine(a, w, f"{name}.up")), w, f"{name}.down"), w, f"{name}.norm", 1e-12)


def extra_layers(z: Array, w: Weights, count: int) -> Array:
    x = z[:, -1]
    for n in range(count):
        x = transformer_layer(x, w, f"layers.{n}")
    return x


def projected_attention(z: Array, w: Weights) -> Array:
    x = affine(z[:, -1], w, "down")
    for n in range(2):
        q, k, v = (affine(x, w, f"layers.{n}.{part}") for part in ("query", "key", "value"))
        attended = softmax(q @ k.T / math.sqrt(x.shape[-1])) @ v
        x = layer_norm(x + affine(attended, w, f"layers.{n}.out"), w, f"layers.{n}.norm", 1e-12)
    return affine(x, w, "up")


def projected_ffn(z: Array, w: Weights) -> Array:
    x = affine(z[..., -1, :], w, "down")
    for n in range(2):
        inner = affine(gelu(affine(x, w, f"layers.{n}.inner")), w, f"layers.{n}.outer")
        x = layer_norm(x + inner, w, f"layers.{n}.norm", 1e-12)
    return affine(x, w, "up")


def down(z: Array, w: Weights, i: int) -> Array:
    return affine(z[:, i], w, f"downs.{i}")


def ladder(z: Array, w: Weights) -> Array:
    s = down(z, w, 0)
    for i in range(1, z.shape[1]):
        gate = sigmoid(w["gates"][i - 1] / 0.1)
        s = transformer_layer(gate * down(z, w, i) + (1 - gate) * s, w, f"layers.{i - 1}")
    return np.asarray(z[:, -1] + affine(s, w, "up"))


def ladder_weights(z: Array, w: Weights) -> Array:
    entered = np.array([1.0, *sigmoid(w["gates"] / 0.1)])
    shares = [
        entered[i] * np.prod(1 - entered[i + 1 :]) * np.linalg.norm(down(z, w, i), axis=-1) for i in range(z.shape[1])
    ]
    return np.asarray(np.stack(shares, -1) / sum(shares)[:, None])


def flat(z: Array, w: Weights) -> Array:
    s = affine(z.reshape(len(z), -1), w, "down") / math.sqrt(z.shape[1])
    return np.asarray(z[:, -1] + affine(transformer_layer(s, w, "layer"), w, "up"))


def flat_weights(z: Array, w: Weights) -> Array:
    maps = np.split(w["down.weight"], z.shape[1], axis=1)
    sizes = np.stack([np.linalg.norm(z[:, i] @ each.T, axis=-1) for i, each in enumerate(maps)], -1)
    return np.asarray(sizes / sizes.sum(-1, keepdims=True))


def narrow_layer_count(width: int) -> int:
    """Parameters of a Transformer layer: four square maps and two of 4 × width, their biases, two norms."""
    return 4 * (width**2 + width) + (width * 4 * width + 4 * width) + (4 * width * width + width) + 2 * 2 * width


def ladder_count(layers: int, hidden: int, r: int) -> int:
    width = hidden // r
    steps = (layers - 1) * (narrow_layer_count(width) + 1)
    return layers * (hidden * width + width) + steps + width * hidden + hidden


def flat_count(layers: int, hidden: int, r: int) -> int:
    width = hidden // r
    return layers * hidden * width + width + narrow_layer_count(width) + width * hidden + hidden


@dataclass(frozen=True)
class Case:
    """A fusion with options, as the command line names it.

    Attributes:
        kept: what the contract compares: formula, number of parameters, layer weights. reads: the layers that it reads
            by default, of an encoder whose last layer is 6. temperature: what its scores are divided by.
        mean: True where fresh weights give the mean of the layers. drawn: True where a seed decides fresh weights.
        whole: True where a row's output depends on its neighbours.
    """

    kept: FusionCase
    reads: tuple[int, ...]
    temperature: float | None = None
    mean: bool = False
    drawn: bool = True
    whole: bool = False

    @property
    def name(self) -> str:
        return self.kept.name


def case_of(
    name: str,
    reads: tuple[int, ...],
    parameters: Callable[[int, int], int],
    formula: Formula,
    layer_weights: Formula | None = None,
    idle: tuple[str, ...] = (),
    **fields: Any,
) -> Case:
    return Case(FusionCase(name, formula, parameters, layer_weights, idle), reads, **fields)


def linear(z: Array, w: Weights) -> Array:
    return np.asarray(w.get("gamma", 1.0) * mixed(linear_weights(z, w), z))


def mix(
    name: str,
    reads: tuple[int, ...],
    parameters: Callable[[int, int], int],
    weights: Callable[[Array, Weights], Array],
    **fields: Any,
) -> Case:
    """The case of a fusion that is a weighted sum of the layers and starts as their mean."""
    return case_of(name, reads, parameters, lambda z, w: mixed(weights(z, w), z), weights, mean=True, **fields)


def none(layers: int, hidden: int) -> int:
    return 0


def a_layer_and_gamma(layers: int, hidden: int) -> int:
    return layers + 1


def a_layer(layers: int, hidden: int) -> int:
    return layers


def a_width(layers: int, hidden: int) -> int:
    return hidden


def dwatt_count(layers: int, hidden: int) -> int:
    bottlenecks = layers * (hidden**2 + 9 * hidden // 2) + hidden**2 + 5 * hidden // 2
    return bottlenecks + 25 * hidden


ROOT = math.sqrt(HIDDEN)
ALL, ABOVE, LAST = tuple(range(7)), tuple(range(1, 7)), (6,)
fixed: Any = {"drawn": False}
keys = ("key.bias",)
CASES = [
    case_of("last", LAST, none, lambda z, w: z[..., -1, :], **fixed),
    case_of("layer:0", (0,), none, lambda z, w: z[..., 0, :], **fixed),
    case_of("layer:4", (4,), none, lambda z, w: z[..., 0, :], **fixed),
    case_of("layer:-1", (6,), none, lambda z, w: z[..., 0, :], **fixed),
    case_of("layer:-7", (0,), none, lambda z, w: z[..., 0, :], **fixed),
    case_of("linear", ALL, a_layer_and_gamma, linear, linear_weights, mean=True, **fixed),
    case_of("linear:gamma=no", ALL, a_layer, linear, linear_weights, mean=True, **fixed),
    case_of("linear:embeddings=no", ABOVE, a_layer_and_gamma, linear, linear_weights, mean=True, **fixed),
    case_of("linear:norm=token", ALL, a_layer_and_gamma, lambda z, w: linear(normal(z), w), linear_weights, **fixed),
    case_of("concat", ABOVE, lambda layers, hidden: 256 * layers * hidden + 256, concat),
    case_of("concat:first=yes", ABOVE, none, lambda z, w: np.concatenate(np.moveaxis(z, -2, 0), -1), **fixed),
    case_of("concat-affine", ABOVE, lambda layers, hidden: layers * (hidden**2 + hidden), concat_affine),
    mix("attention", ALL, a_width, attention_weights, temperature=1.0, **fixed),
    mix(
        "attention:scale=yes",
        ALL,
        a_width,
        partial(attention_weights, temperature=ROOT),
        temperature=ROOT,
        **fixed,
    ),
    case_of("dwatt", ABOVE, dwatt_count, dwatt, dwatt_weights, keys, temperature=1.0),
    case_of(
        "dwatt:scale=yes",
        ABOVE,
        dwatt_count,
        partial(dwatt, temperature=ROOT),
        partial(dwatt_weights, temperature=ROOT),
        keys,
        temperature=ROOT,
    ),
    *(
        case_of(
            f"extra-layers:{n}",
            LAST,
            partial(lambda n, layers, hidden: n * (12 * hidden**2 + 13 * hidden), n),
            partial(extra_layers, count=n),
            idle=tuple(f"layers.{k}.key.bias" for k in range(n)),
            whole=True,
        )
        for n in (1, 2)
    ),
    case_of(
        "projected-attention:6,depth=2,heads=1",
        LAST,
        lambda layers, hidden: 2 * hidden * 6 + 6 + hidden + 2 * (4 * 36 + 6 * 6),
        projected_attention,
        idle=("layers.0.key.bias", "layers.1.key.bias"),
        whole=True,
    ),
    case_of(
        "projected-ffn:6,depth=2",
        LAST,
        lambda layers, hidden: 2 * hidden * 6 + 6 + hidden + 2 * (2 * 36 + 4 * 6),
        projected_ffn,
    ),
    case_of(
        "ladder:2",
        ALL,
        partial(ladder_count, r=2),
        ladder,
        ladder_weights,
        tuple(f"layers.{k}.key.bias" for k in range(LAYERS - 1)),
        whole=True,
    ),
    case_of("flat:2", ALL, partial(flat_count, r=2), flat, flat_weights, ("layer.key.bias",), whole=True),
    case_of(
        "element-wise",
        ALL,
        lambda layers, hidden: layers * hidden,
        element_wise,
        element_wise_weights,
        mean=True,
        **fixed,
    ),
    case_of(
        "element-wise:softmax=no",
        ALL,
        lambda layers, hidden: layers * hidden,
        lambda z, w: np.einsum("ld,...ld->...d", w["weight"], z),
        mean=True,
        **fixed,
    ),
    mix("mlp-weights", ALL, lambda layers, hidden: hidden**2 // 2 + hidden, mlp_weights),
    case_of(
        "mlp-weights:softmax=no",
        ALL,
        lambda layers, hidden: hidden**2 // 2 + hidden + 1,
        lambda z, w: mixed(mlp_scores(z, w) + w["bias"], z),
        mean=True,
    ),
    case_of("depth-lstm", ALL, lambda layers, hidden: 8 * hidden**2 + 8 * hidden, depth_lstm),
]


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """All cases."""
    return CASES


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Any:
    """Each case."""
    return request.param
