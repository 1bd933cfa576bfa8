"""The table of fusions, and building one over the layers a store holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol

from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.fusions.attention import Attention
from fusionkit.fusions.concat import Concat
from fusionkit.fusions.concat_affine import ConcatAffine
from fusionkit.fusions.depth_lstm import DepthLstm
from fusionkit.fusions.dwatt import DWAtt
from fusionkit.fusions.element_wise import ElementWise
from fusionkit.fusions.extra_layers import ExtraLayers
from fusionkit.fusions.last import Last
from fusionkit.fusions.layer import Layer
from fusionkit.fusions.linear import Linear
from fusionkit.fusions.mlp_weights import MlpWeights
from fusionkit.fusions.spelling import accepted, parse, spell

Layers = tuple[int, ...]


class Fusion(Protocol):
    """What each fusion is: a module that removes the layer axis.

    Built as ``Fusion(layers, hidden, **options)`` for the number of layers it will read; ``width`` is its output's.
    ``Fusion.reads(last, chosen, **options)`` names the encoder's layers it reads, of 0 … ``last`` or of those chosen.
    One that looks at a row's neighbours says ``whole_examples = True``; one that scores its layers before a softmax
    has the ``temperature`` it divides the scores by.
    """

    width: int

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[rows, layers, hidden]``, offsets of the examples ``[examples + 1]`` → ``[rows, width]``.

        Without ``whole_examples`` the offsets may be left out, and ``rows`` may be any leading shape.
        """
        ...

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """The weight each layer had, ``[…, layers]``, where the fusion has such weights."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """What it learns."""
        ...


FUSIONS: dict[str, type[Any]] = {
    "last": Last,
    "layer": Layer,
    "linear": Linear,
    "concat": Concat,
    "concat-affine": ConcatAffine,
    "attention": Attention,
    "dwatt": DWAtt,
    "extra-layers": ExtraLayers,
    "element-wise": ElementWise,
    "mlp-weights": MlpWeights,
    "depth-lstm": DepthLstm,
}


@cache
def _parsed(name: str) -> tuple[str, Mapping[str, Any]]:
    """A sweep asks the same of each of its runs, many times over."""
    return parse(name, FUSIONS)


@cache
def fusion_name(text: str) -> str:
    """The one spelling of a fusion and its options: equal fusions get equal names.

    Raises:
        UsageError: an unknown name or option, or a value that does not fit.
    """
    return spell(text, FUSIONS)


def fusion_layers(name: str, stored: Layers, encoder_layers: int, chosen: Layers | None = None) -> Layers:
    """The stored layers a fusion reads: its default layers as far as they are stored, or those chosen.

    Args:
        name: a fusion with its options. stored: layer indices in the store. encoder_layers: how many the encoder
            has, L + 1. chosen: some of the stored layers instead of the default ones.

    Raises:
        UsageError: an unknown name, or none of its layers is stored or chosen (for ``last`` and ``layer:k``, its one).
    """
    kind, options = _parsed(name)
    reads = FUSIONS[kind].reads
    wanted: Layers = reads(encoder_layers - 1, chosen, **accepted(reads, options))
    offered = stored if chosen is None else chosen
    found = tuple(layer for layer in wanted if layer in offered)
    if not found:
        remedy = "encode again with these --layers" if chosen is None else "choose it in --fusion-layers too"
        raise UsageError(
            f"{'the store' if chosen is None else '--fusion-layers'} has no layer that fusion {name!r} reads",
            expected=f"layer {', '.join(map(str, wanted))}" if wanted else "a layer above the embeddings",
            received=f"layers {', '.join(map(str, offered))}",
            remedy=f"{remedy}, or choose another fusion",
        )
    return found


def sees_examples(name: str) -> bool:
    """True for a fusion that looks at all rows of an example, so that it must get all of them."""
    return getattr(FUSIONS[_parsed(name)[0]], "whole_examples", False)


def build_fusion(name: str, layers: int, hidden: int) -> Fusion:
    """A fusion with fresh weights over ``layers`` layers of width ``hidden``.

    Raises:
        UsageError: an unknown name or option, or a value that does not fit.
    """
    kind, options = _parsed(name)
    made: Fusion = FUSIONS[kind](layers, hidden, **accepted(FUSIONS[kind], options))
    return made
