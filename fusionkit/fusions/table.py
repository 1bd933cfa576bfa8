"""The table of fusions, and building one over the layers a store holds."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fusionkit.errors import UsageError, unknown_name
from fusionkit.fusions.attention import Attention
from fusionkit.fusions.concat import Concat
from fusionkit.fusions.last import Last
from fusionkit.fusions.layer import Layer
from fusionkit.fusions.linear import Linear


class Fusion(Protocol):
    """What each fusion is: a module that removes the layer axis.

    Built as ``Fusion(layers, hidden)`` for the number of layers it will read; ``width`` is its output's.
    """

    width: int

    def __call__(self, states: Tensor) -> Tensor:
        """``[…, layers, hidden]`` → ``[…, width]``, in any leading shape."""
        ...

    def layer_weights(self, states: Tensor) -> Tensor | None:
        """The weight each layer had, ``[…, layers]``, where the fusion has such weights."""
        ...


FUSIONS: dict[str, type[Last | Layer | Linear | Concat | Attention]] = {
    "last": Last,
    "layer": Layer,
    "linear": Linear,
    "concat": Concat,
    "attention": Attention,
}


def fusion_layers(name: str, stored: tuple[int, ...], encoder_layers: int) -> tuple[int, ...]:
    """The stored layers a fusion reads: its default layers, as far as they are stored.

    Args:
        name: a name of the table, ``layer:k`` with its argument.
        stored: layer indices in the store. encoder_layers: how many the encoder has, L + 1.

    Raises:
        UsageError: an unknown name, or none of its layers is stored (for ``last`` and ``layer:k``, its one).
    """
    kind, argument = _parse(name)
    wanted = FUSIONS[kind].reads(encoder_layers - 1, argument)
    found = tuple(layer for layer in wanted if layer in stored)
    if not found:
        raise UsageError(
            f"the store has no layer that fusion {name!r} reads",
            expected=f"layer {', '.join(map(str, wanted))}",
            received=f"layers {', '.join(map(str, stored))}",
            remedy="encode again with these --layers, or choose another fusion",
        )
    return found


def build_fusion(name: str, layers: int, hidden: int) -> Last | Layer | Linear | Concat | Attention:
    """A fusion with fresh weights over ``layers`` layers of width ``hidden``."""
    return FUSIONS[_parse(name)[0]](layers, hidden)


def _parse(name: str) -> tuple[str, str | None]:
    kind, colon, argument = name.partition(":")
    if kind not in FUSIONS:
        raise unknown_name("fusion", name, [n if n != "layer" else "layer:k" for n in FUSIONS])
    if (kind == "layer") != bool(colon):
        raise UsageError(
            f"fusion {name!r} is not complete" if kind == "layer" else f"fusion {kind!r} takes no argument",
            expected="layer:k, e.g. layer:3 or layer:-1" if kind == "layer" else kind,
            received=name,
        )
    return kind, argument or None
