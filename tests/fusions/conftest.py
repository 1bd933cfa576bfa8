"""Every fusion and its options, each with its formula written again in NumPy, its size and what it promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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


def mlp_weights(z: Array, w: Weights) -> Array:
    return softmax((np.tanh(affine(z, w, "inner")) * w["outer"]).sum(-1))


def depth_lstm(z: Array, w: Weights) -> Array:
    h = c = np.zeros_like(z[..., 0, :])
    for j in range(z.shape[-2]):
        i, f, g, o = np.split(affine(z[..., j, :], w, "input") + affine(h, w, "memory"), 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    return np.asarray(h)


def transformer_layer(x: Array, w: Weights, name: str) -> Array:
    """One head over one example, ``[rows, hidden]``."""
    q, k, v = (affine(x, w, f"{name}.{part}") for part in ("query", "key", "value"))
    attended = softmax(q @ k.T / math.sqrt(x.shape[-1])) @ v
    a = layer_norm(x + affine(attended, w, f"{name}.out"), w, f"{name}.attention_norm", 1e-12)
    return layer_norm(a + affine(gelu(affine(a, w, f"{name}.up")), w, f"{name}.down"), w, f"{name}.norm", 1e-12)


def extra_layers(z: Array, w: Weights, count: int) -> Array:
    x = z[:, -1]
    for n in range(count):
        x = transformer_layer(x, w, f"layers.{n}")
    return x


@dataclass(frozen=True)
class Case:
    """One spelling of a fusion.

    Attributes:
        output: its formula: the states ``[…, layers, hidden]`` of one example and the weights → ``[…, width]``.
        count: trainable parameters over an encoder of 24 layers of width 1024, all layers stored.
        weights: the formula of its layer weights, where it has them. temperature: what its scores are divided by.
        mean: True where fresh weights give the mean of the layers. drawn: True where a seed decides fresh weights.
        whole: True where a row's output depends on its neighbours.
        idle: parameters that no loss can move: they add the same to all scores of a softmax.
    """

    name: str
    output: Callable[[Array, Weights], Array]
    count: int
    weights: Callable[[Array, Weights], Array] | None = None
    temperature: float | None = None
    mean: bool = False
    drawn: bool = True
    whole: bool = False
    idle: tuple[str, ...] = ()


def linear(z: Array, w: Weights) -> Array:
    return np.asarray(w.get("gamma", 1.0) * mixed(linear_weights(z, w), z))


def mix(name: str, count: int, weights: Callable[[Array, Weights], Array], **fields: Any) -> Case:
    """A fusion that is its layer weights over the layers themselves, and starts as their mean."""
    return Case(name, lambda z, w: mixed(weights(z, w), z), count, weights, mean=True, **fields)


ROOT = math.sqrt(6)  # of the width that the contract's states have
D, N = 1024, 24
CASES = [
    Case("last", lambda z, w: z[..., -1, :], 0, drawn=False),
    Case("layer:0", lambda z, w: z[..., 0, :], 0, drawn=False),
    Case("linear", linear, N + 2, linear_weights, mean=True, drawn=False),
    Case("linear:gamma=no", linear, N + 1, linear_weights, mean=True, drawn=False),
    Case("linear:embeddings=no", linear, N + 1, linear_weights, mean=True, drawn=False),
    Case("linear:norm=token", lambda z, w: linear(normal(z), w), N + 2, linear_weights, drawn=False),
    Case("concat", concat, 6_291_456 + 256),
    Case("concat-affine", concat_affine, 25_190_400),
    mix("attention", D, attention_weights, temperature=1.0, drawn=False),
    mix("attention:scale=yes", D, partial(attention_weights, temperature=ROOT), temperature=ROOT, drawn=False),
    Case("dwatt", dwatt, 26_353_152, dwatt_weights, 1.0, idle=("key.bias",)),
    Case(
        "dwatt:scale=yes",
        partial(dwatt, temperature=ROOT),
        26_353_152,
        partial(dwatt_weights, temperature=ROOT),
        ROOT,
        idle=("key.bias",),
    ),
    Case("extra-layers:1", partial(extra_layers, count=1), 25_192_448 // 2, whole=True, idle=("layers.0.key.bias",)),
    Case(
        "extra-layers:2",
        partial(extra_layers, count=2),
        25_192_448,
        whole=True,
        idle=("layers.0.key.bias", "layers.1.key.bias"),
    ),
    Case("element-wise", element_wise, (N + 1) * D, element_wise_weights, mean=True, drawn=False),
    mix("mlp-weights", D**2 // 2 + D, mlp_weights),
    Case("depth-lstm", depth_lstm, 8 * D**2 + 8 * D),
]


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """All of them."""
    return CASES


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Any:
    """Each of them."""
    return request.param
