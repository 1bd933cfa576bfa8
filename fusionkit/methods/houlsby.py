"""Adapters: ``a(h) = h + W_up gelu(W_down h + b_down) + b_up`` behind attention and behind the feed-forward network.

Symbols: ``h`` the output of a layer's attention or feed-forward network at one token, behind its dropout and before the
residual sum and its layer norm; ``d`` its width; ``W_down``: d → m, ``W_up``: m → d. ``W_up`` and both ``b`` start at
zero, so that the encoder starts as it was; ``W_down`` starts at N(0, 0.02²).
Source: Houlsby et al. (2019), with GELU. Sharing: a re-implementation of 2020.

Options: ``share=layer`` has one adapter for both places of a layer, ``share=three`` one for the six places of three
consecutive layers. ``layers=-6:`` has adapters in the last six layers alone, ``layers=1:7`` in the first six.
``norms=yes`` trains the layer norms of these layers too, as section 5.2 of the adapters report (``pipelines/adapters``)
does.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, SkippedLayers, attached_parts
from fusionkit.methods.structure import Structure, layer_span

STD = 0.02
THREE = 3


class Adapter(nn.Module):
    """``a``. Parameters: 2 m d + d + m."""

    def __init__(self, hidden: int, m: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden, m), nn.Linear(m, hidden)
        nn.init.normal_(self.down.weight, std=STD)
        for start in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(start)

    def forward(self, h: Tensor) -> Tensor:
        """``[…, hidden]`` → ``[…, hidden]``."""
        return h + self.up(functional.gelu(self.down(h)))  # type: ignore[no-any-return]


class Houlsby:
    """Trains: the adapters, with ``norms=yes`` the layer norms too. Parameters: 2 L (2 m d + d + m)."""

    def __init__(
        self, *, m: int, share: Literal["no", "layer", "three"] = "no", layers: str = "all", norms: bool = False
    ) -> None:
        if m < 1:
            raise UsageError(
                "there are no such adapters",
                expected="houlsby:m with m at least 1",
                received=f"houlsby:{m}",
                remedy="choose a width, for example houlsby:64",
            )
        self.m, self.share, self.layers, self.norms = m, share, layers, norms

    def lowest_layer(self, depth: int) -> int:
        """The first of the layers that have adapters."""
        return layer_span(self.layers, depth, "houlsby")[0]

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for layers that are not there, or an encoder whose places cannot be found."""
        span = structure.span(self.layers, "houlsby")
        places = [place for n in span for place in _ends(structure, n)]
        together = {"no": 1, "layer": 2, "three": 2 * THREE}[self.share]  # places of one adapter
        adapters = nn.ModuleList(Adapter(structure.hidden, self.m) for _ in range(-(-len(places) // together)))
        skipped = SkippedLayers()
        hooks = [
            place.register_forward_hook(_through(adapters[k // together], span[k // 2], skipped))
            for k, place in enumerate(places)
        ]
        norms = {
            name: parameter
            for name, (layer, parameter) in structure.parameters().items()
            if self.norms and layer in span and structure.is_norm(name)
        }
        layers: dict[str, Any] = {"part_layers": tuple(span), "skip": skipped}
        return attached_parts(model, structure, adapters, span[0], norms, hooks=hooks, **layers)


def _ends(structure: Structure, layer: int) -> tuple[nn.Module, nn.Module]:
    place = structure.places[layer - 1]
    return place.attention, place.feed_forward


def _through(adapter: nn.Module, layer: int, skipped: SkippedLayers) -> Any:
    return lambda module, inputs, output: output if layer in skipped else adapter(output)
