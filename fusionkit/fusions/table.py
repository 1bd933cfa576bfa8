"""The table of fusions, and building one over the layers a store holds.

Names and their options are read without torch, because help and completion need them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from fusionkit.errors import UsageError, unknown_name
from fusionkit.names import EVERY_LAYER
from fusionkit.options.spelling import accepted, options_fault, outline, parse, spell
from fusionkit.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

Layers = tuple[int, ...]


class Fusion(Protocol):
    """The protocol of a fusion: a module that removes the layer axis.

    Built as ``Fusion(layers, hidden, **options)`` for the number of layers it will read; ``width`` is the width of
    its output. All else is optional. ``Fusion.reads(last, chosen, **options)`` names the encoder's layers it reads, of
    0 … ``last`` or of those chosen; without it, :func:`all_layers`. ``layer_weights(states)`` gives the weight of each
    layer, ``[…, layers]``, or None. A fusion that reads other rows of the example has ``whole_examples = True``. It may
    take ``longest`` after the offsets, an upper bound of an example's rows, or None; then a GPU records its steps as
    CUDA graphs. Such a fusion must not synchronise with the host, and rows may follow after the last offset, whose
    output is not read. A fusion that is an affine map of each row's states, the same for all rows, has
    ``is_affine = True``, or a static function ``is_affine`` of its options; if its output is averaged over rows, it is
    applied to the mean instead. A fusion that scores its layers before a softmax has a ``temperature``, by which it
    divides the scores.
    """

    width: int

    def __call__(self, states: Tensor, offsets: Tensor) -> Tensor:
        """``[rows, layers, hidden]``, offsets of the examples ``[examples + 1]`` → ``[rows, width]``.

        Without ``whole_examples`` the offsets may be left out, and ``rows`` may be any leading shape.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


FUSIONS = {
    "last": "fusionkit.fusions.last:Last",
    "layer": "fusionkit.fusions.layer:Layer",
    "linear": "fusionkit.fusions.linear:Linear",
    "concat": "fusionkit.fusions.concat:Concat",
    "concat-affine": "fusionkit.fusions.concat_affine:ConcatAffine",
    "attention": "fusionkit.fusions.attention:Attention",
    "dwatt": "fusionkit.fusions.dwatt:DWAtt",
    "extra-layers": "fusionkit.fusions.extra_layers:ExtraLayers",
    "projected-attention": "fusionkit.fusions.projected_attention:AttentionOnTop",
    "projected-ffn": "fusionkit.fusions.projected_ffn:FeedForwardOnTop",
    "ladder": "fusionkit.fusions.ladder:Ladder",
    "flat": "fusionkit.fusions.flat:Flat",
    "element-wise": "fusionkit.fusions.element_wise:ElementWise",
    "mlp-weights": "fusionkit.fusions.mlp_weights:MlpWeights",
    "depth-lstm": "fusionkit.fusions.depth_lstm:DepthLstm",
}
REGISTRY = Registry("fusion", "fusionkit.fusions", FUSIONS)


@cache
def fusion_signature(name: str) -> type[Any]:
    """A class with a fusion's signatures; fusionkit's own are not imported for it. Errors as :func:`fusion_class`."""
    if name in FUSIONS:
        return outline(FUSIONS[name])
    if name not in REGISTRY.names() and ":" not in name:
        raise unknown_name("fusion", name, [usage.partition("[")[0] for usage in REGISTRY.usages.values()])
    return fusion_class(name)


@cache
def fusion_class(name: str) -> type[Any]:
    """The class behind a name of the table, of an installed package or an import path.

    Raises:
        UsageError: the name is unknown, its module cannot be imported, or the object there is no fusion.
    """
    found = REGISTRY.load(name).value
    if REGISTRY.is_own(name) and (fault := _fault(found)) is not None:
        raise UsageError(
            f"{name!r} is no fusion: {fault}",
            expected="a torch.nn.Module, built as (layers, hidden, *, options), with forward and a width",
            received=f"{found!r}",
            remedy="see docs/your-own.md; fusionkit.testing.check_fusion tries all that a fusion must keep",
        )
    return found  # type: ignore[no-any-return]


def _fault(found: Any) -> str | None:
    """The reason why a user's class is not a fusion, or None."""
    from torch import nn

    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        return "it is no torch.nn.Module"
    if found.forward is nn.Module.forward:
        return "it has no forward"
    return options_fault(found)


@cache
def _parsed(text: str) -> tuple[str, Mapping[str, Any]]:
    """Cached, because a sweep parses the same names many times."""
    kind, options = REGISTRY.split(text)
    also = f", or {EVERY_LAYER} in a sweep: each stored layer alone" if kind == EVERY_LAYER.partition(":")[0] else ""
    return kind, parse("fusion", kind, fusion_signature(kind), options, also)


@cache
def fusion_name(text: str) -> str:
    """The canonical spelling of a fusion and its options: equal fusions get equal names.

    Raises:
        UsageError: an unknown name or option, a value that does not fit, or a module that cannot be imported.
    """
    kind, options = _parsed(text)
    return spell(kind, fusion_signature(kind), options)


def fusion_kind(text: str) -> str:
    """The name without options; nothing is imported."""
    return REGISTRY.split(text)[0]


def fusion_layers(name: str, stored: Layers, encoder_layers: int, chosen: Layers | None = None) -> Layers:
    """The stored layers a fusion reads: its default layers that are stored, or the chosen ones.

    Args:
        name: a fusion with its options. stored: layer indices in the store. encoder_layers: the encoder's number of
            layers, L + 1. chosen: some of the stored layers instead of the default ones.

    Raises:
        UsageError: an unknown name, or none of its layers is stored or chosen (``last`` and ``layer:k`` have one).
    """
    kind, options = _parsed(name)
    reads = getattr(fusion_class(kind), "reads", all_layers)
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


def all_layers(last: int, chosen: Layers | None = None) -> Layers:
    """What a fusion without ``reads`` of its own reads."""
    return chosen or tuple(range(last + 1))


def sees_examples(name: str) -> bool:
    """True for a fusion that looks at all rows of an example, so that it must get all of them."""
    return getattr(fusion_class(_parsed(name)[0]), "whole_examples", False)


def takes_longest(name: str) -> bool:
    """True for a fusion over whole examples that takes ``longest``, the upper bound of an example's rows."""
    return sees_examples(name) and "longest" in inspect.signature(fusion_class(_parsed(name)[0]).forward).parameters


@cache
def is_affine(name: str) -> bool:
    """True for an affine map of each row's states, the same at all rows; such a fusion may be applied after a mean over
    rows.
    """
    kind, options = _parsed(name)
    found = getattr(fusion_class(kind), "is_affine", False)
    return found(**accepted(found, options)) if callable(found) else found


def build_fusion(name: str, layers: int, hidden: int) -> Fusion:
    """A fusion with fresh weights over ``layers`` layers of width ``hidden``.

    Raises:
        UsageError: an unknown name or option, or a value that does not fit.
    """
    kind, options = _parsed(name)
    fusion = fusion_class(kind)
    made: Fusion = fusion(layers, hidden, **accepted(fusion, options))
    return made


def fusion_parameters(name: str, layers: int, hidden: int) -> int:
    """The number of weights that :func:`build_fusion` would make, counted without memory behind them."""
    import torch  # names and options are read without it

    with torch.device("meta"):
        made = build_fusion(name, layers, hidden)
    return sum(weights.numel() for weights in made.parameters())
