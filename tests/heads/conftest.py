"""Every head with its formula written again in NumPy, its number of parameters and the claims about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionkit.testing import HeadCase

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Weights = dict[str, Array]


def affine(x: Array, w: Weights, name: str) -> Array:
    return np.asarray(x @ w[f"score.{name}.weight"].T + w[f"score.{name}.bias"])


def softmax(scores: Array) -> Array:
    """Softmax over the last axis; empty scores stay empty."""
    powers = np.exp(scores - scores.max(-1, keepdims=True)) if scores.size else scores
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def feed_forward(x: Array, w: Weights) -> Array:
    return affine(np.maximum(affine(np.maximum(affine(x, w, "0"), 0), w, "3"), 0), w, "6")


def lstm(x: Array, w: Weights, name: str) -> Array:
    """One direction of one layer, step by step: ``[rows, width]`` → ``[rows, hidden]``."""
    of_input, of_memory, bias, other = (
        w[name.format(kind)] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = c = np.zeros(of_memory.shape[1])
    found = [np.zeros((0, len(h)))]
    for row in x:
        i, f, g, o = np.split(of_input @ row + of_memory @ h + bias + other, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        found.append(h[None])
    return np.concatenate(found)


def bilstm(x: Array, w: Weights, name: str, layers: int = 1) -> Array:
    for layer in range(layers):
        there, back = (f"score.{name}.lstm.{{}}_l{layer}{end}" for end in ("", "_reverse"))
        x = np.concatenate([lstm(x, w, there), lstm(x[::-1], w, back)[::-1]], 1)
    return x


def attended(x: Array, y: Array) -> Array:
    """Attention of each row of x over the rows of y; zeros where y has no rows."""
    return np.asarray(softmax(x @ y.T) @ y) if len(y) else np.zeros_like(x)


def pooled(x: Array, how: Callable[..., Array]) -> Array:
    return np.asarray(how(x, axis=0)) if len(x) else np.zeros(x.shape[1])


def bilstm_emissions(x: Array, w: Weights) -> Array:
    return affine(bilstm(x, w, "encoder", layers=2), w, "out")


def maxout(x: Array, w: Weights, name: str) -> Array:
    first, second = np.split(affine(x, w, name), 2)
    return np.maximum(first, second)


def bcn(z: Array, w: Weights) -> Array:
    x = bilstm(np.maximum(affine(z, w, "enter"), 0), w, "encoder")
    c = attended(x, x)
    m = bilstm(np.concatenate([x, x - c, x * c], 1), w, "integrator")
    weights = softmax(m @ w["score.attention.weight"][0])
    p = np.concatenate([pooled(m, np.max), pooled(m, np.mean), pooled(m, np.min), weights @ m])
    return affine(maxout(maxout(p, w, "middle"), w, "upper"), w, "out")[None]


def esim(z: Array, y: Array, w: Weights) -> Array:
    a, b = bilstm(z, w, "encoder"), bilstm(y, w, "encoder")

    def read(x: Array, other: Array) -> list[Array]:
        compared = affine(np.concatenate([x, other, x - other, x * other], 1), w, "project")
        m = bilstm(np.maximum(compared, 0), w, "composer")
        return [pooled(m, np.mean), pooled(m, np.max)]

    both = np.concatenate([*read(a, attended(a, b)), *read(b, attended(b, a))])
    return affine(np.tanh(affine(both, w, "middle")), w, "out")[None]


def cross_entropy(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return float(-log_p[np.arange(len(targets)), targets].mean())


def squared_error(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    return float(((scores[:, 0] - targets) ** 2).sum() / len(targets))


def binary_cross_entropy(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    likely = 1 / (1 + np.exp(-scores))
    return float(-np.where(targets == 1, np.log(likely), np.log(1 - likely)).mean())


def paths(scores: Array, w: Weights) -> dict[tuple[int, ...], float]:
    """The score of every tag sequence of one example."""
    return {
        tags: w["start"][tags[0]]
        + sum(row[tag] for row, tag in zip(scores, tags, strict=True))
        + sum(w["transitions"][pair] for pair in itertools.pairwise(tags))
        + w["end"][tags[-1]]
        for tags in itertools.product(range(scores.shape[1]), repeat=len(scores))
    }


def crf_loss(scores: Array, targets: Ints, offsets: Ints, w: Weights) -> float:
    losses = []
    for start, end in itertools.pairwise(offsets):
        if end > start:
            of = paths(scores[start:end], w)
            losses.append(np.log(sum(np.exp(s) for s in of.values())) - of[tuple(int(t) for t in targets[start:end])])
    return float(np.mean(losses))


def crf_decode(scores: Array, offsets: Ints, w: Weights) -> list[int]:
    tags: list[int] = []
    for start, end in itertools.pairwise(offsets):
        if end > start:
            of = paths(scores[start:end], w)
            best: tuple[int, ...] = max(of, key=of.__getitem__)
            tags.extend(best)
    return tags


def best_class(scores: Array, offsets: Ints, w: Weights) -> list[int]:
    found: list[int] = scores.argmax(1).tolist()
    return found


def layers_count(*widths: int) -> int:
    """Parameters of affine maps from each width to the next."""
    return sum(a * b + b for a, b in itertools.pairwise(widths))


def lstm_count(width: int, hidden: int) -> int:
    """Parameters of two directions of four gates, each with two maps and two biases."""
    return 2 * 4 * (width * hidden + hidden * hidden + 2 * hidden)


def ff_count(width: int, classes: int) -> int:
    return layers_count(width, 256, 256, classes)


def crf_count(classes: int) -> int:
    return classes**2 + 2 * classes


def bcn_count(width: int, classes: int) -> int:
    maxouts = 2 * (layers_count(8 * 300, 600) + layers_count(600, 300))
    return layers_count(width, 300) + lstm_count(300, 300) + lstm_count(1800, 300) + 600 + maxouts + 301 * classes


def esim_count(width: int, outputs: int) -> int:
    read = lstm_count(width, 300) + layers_count(2400, 300) + lstm_count(300, 300)
    return read + layers_count(2400, 300, outputs)


def once(rows: int) -> int:
    return 1


softmax_of: Any = {"loss": cross_entropy, "decode": best_class}
number: Any = {"loss": squared_error, "decode": lambda scores, offsets, w: scores[:, 0].tolist()}
several: Any = {
    "loss": binary_cross_entropy, "decode": lambda scores, offsets, w: (1 / (1 + np.exp(-scores))).tolist(),
}  # fmt: skip
crf: Any = {"loss": crf_loss, "decode": crf_decode, "weigh": lambda rows: 1 if rows else 0}
by_row: Any = {"weigh": lambda rows: rows}
CASES = [
    HeadCase("classifier", ff_count, feed_forward, weigh=once, **softmax_of),
    HeadCase("linear-classifier", layers_count, partial(affine, name="1"), weigh=once, **softmax_of),
    HeadCase("tagger", ff_count, feed_forward, **by_row, **softmax_of),
    HeadCase("linear-tagger", layers_count, partial(affine, name="1"), **by_row, **softmax_of),
    HeadCase("crf", lambda width, classes: ff_count(width, classes) + crf_count(classes), feed_forward, **crf),
    HeadCase(
        "bilstm-crf",
        lambda w, c: lstm_count(w, 200) + lstm_count(400, 200) + layers_count(400, c) + crf_count(c),
        bilstm_emissions,
        **crf,
    ),
    HeadCase("regressor", lambda width, classes: ff_count(width, 1), feed_forward, weigh=once, **number),
    HeadCase("linear-regressor", lambda width, classes: width + 1, partial(affine, name="1"), weigh=once, **number),
    HeadCase("bcn", bcn_count, bcn, weigh=once, **softmax_of),
    HeadCase("esim", esim_count, esim, weigh=once, **softmax_of),
    HeadCase("esim-regressor", lambda width, classes: esim_count(width, 1), esim, weigh=once, **number),
    HeadCase("sigmoid-classifier", ff_count, feed_forward, weigh=once, **several),
]


@pytest.fixture(scope="session")
def cases() -> list[HeadCase]:
    """All cases."""
    return CASES


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Any:
    """Each case."""
    return request.param
