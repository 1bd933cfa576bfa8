"""A masked language model's own head: from a state to a score for each sub-token of the vocabulary.

    t = LN(a(W h + b))
    s = E t + c

Symbols: ``h`` ``[d]`` the state; ``W`` ``[e, d]`` and ``b`` the transform; ``a`` the activation; ``LN`` layer norm with
its weight and bias; ``E`` ``[V, e]`` the decoder, usually the encoder's own embeddings, and ``c`` its bias.
Source: Devlin et al. (2019), in the code that came with BERT. RoBERTa, DistilBERT, ALBERT, MPNet, ModernBERT and
ELECTRA's generator have the same form.

Stage one copies the head from a checkpoint into the store, or makes one of the encoder's embeddings where the
checkpoint has none; stage two reads it from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional


def _unchanged(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": functional.tanh,
    "none": _unchanged,
}
# Each weight's shape, in the letters above.
SHAPES = {
    "dense.weight": "ed", "dense.bias": "e", "layer_norm.weight": "e", "layer_norm.bias": "e",
    "decoder.weight": "Ve", "decoder.bias": "V",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LmHead:
    """A head as it was trained.

    Attributes:
        weights: float32, by the names of :data:`SHAPES`. activation: one of :data:`ACTIVATIONS`.
        layer_norm_eps: what the layer norm adds to the variance.
    """

    weights: dict[str, Tensor]
    activation: str
    layer_norm_eps: float

    def __post_init__(self) -> None:
        """Raises ValueError: weights of other names or shapes, or an unknown activation."""
        sizes: dict[str, int] = {}
        fits = set(self.weights) == set(SHAPES) and self.activation in ACTIVATIONS
        for name, letters in SHAPES.items() if fits else ():
            shape = tuple(self.weights[name].shape)
            fits = fits and len(shape) == len(letters)
            fits = fits and all(sizes.setdefault(of, size) == size for of, size in zip(letters, shape, strict=False))
        if not fits:
            shapes = {name: tuple(weight.shape) for name, weight in self.weights.items()}
            raise ValueError(f"no masked LM head of dense, layer_norm and decoder: {shapes}, {self.activation}")

    @property
    def vocabulary(self) -> int:
        """V: the number of sub-tokens that it scores."""
        return int(self.weights["decoder.weight"].shape[0])

    def on(self, device: torch.device) -> LmHead:
        """The same head on a device; weights that are on it already are not copied."""
        return replace(self, weights={name: weight.to(device) for name, weight in self.weights.items()})

    def content(self) -> bytes:
        return save(self.weights)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()


def head_of_embeddings(embeddings: Tensor, layer_norm_eps: float) -> LmHead:
    """A head to be trained, where ``W`` is the identity, ``a`` too, and ``LN`` divides by ``√d``: at first a score is
    the product of a state of length 1 and a sub-token's embedding.

    Args:
        embeddings: ``[V, d]``, those that the encoder reads.
    """
    table = embeddings.detach().to("cpu", torch.float32, copy=True)
    vocabulary, d = table.shape
    weights = {
        "dense.weight": torch.eye(d), "dense.bias": torch.zeros(d),
        "layer_norm.weight": torch.full((d,), d**-0.5), "layer_norm.bias": torch.zeros(d),
        "decoder.weight": table, "decoder.bias": torch.zeros(vocabulary),
    }  # fmt: skip
    return LmHead(weights, "none", layer_norm_eps)


def lm_scores(states: Tensor, weights: Mapping[str, Tensor], activation: str, layer_norm_eps: float) -> Tensor:
    """``[…, d]`` → ``[…, V]``, by the formula above; the weights by the names of :data:`SHAPES`."""
    transformed = functional.linear(states, weights["dense.weight"], weights["dense.bias"])  # […, e]
    transformed = functional.layer_norm(
        ACTIVATIONS[activation](transformed),
        transformed.shape[-1:],
        weights["layer_norm.weight"],
        weights["layer_norm.bias"],
        layer_norm_eps,
    )
    return functional.linear(transformed, weights["decoder.weight"], weights["decoder.bias"])  # […, V]
