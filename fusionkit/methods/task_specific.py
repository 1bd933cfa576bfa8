"""What PALs and low rank have in common: a task's own function of a layer's input, added at its second layer norm.

    h^{l+1} = LN(h^l + SA(h^l) + TS(h^l))

Symbols: ``h^l`` the input of layer l + 1, ``SA`` its self-attention and feed-forward network, ``TS`` the task's own.
The text and the authors' published code differ, and this is the code's: ``TS`` reads the layer's input and is added
where the feed-forward network's output is.
Source: Stickland and Murray (2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.methods.attached import Attached, SkippedLayers, attached_parts
from fusionkit.methods.structure import Structure

# A layer's input [batch, length, hidden], and where it is real [batch, length] or None → what is added in the layer.
Function = Callable[[Tensor, Tensor | None], Tensor]


def attach_functions(
    model: Any, structure: Structure, parts: nn.Module, functions: dict[int, Function], encoder_trains: bool
) -> Attached:
    """Add a function to each of some layers.

    Args:
        parts: the modules of the functions. functions: by layer, 1 … L. encoder_trains: the whole encoder trains too.
    """
    skipped, masks = SkippedLayers(), PassMasks()
    waiting = {layer: list[Tensor]() for layer in functions}  # each layer's input, until its function is added

    def begin(module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        masks.begin(named.get("attention_mask"))
        for kept in waiting.values():
            kept.clear()  # checkpointing keeps an input again, and may stop before it is used

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        masks.end()

    # Hooks on the layer itself would be lost under gradient checkpointing; those on its leaves run again.
    hooks = [model.register_forward_pre_hook(begin, with_kwargs=True), model.register_forward_hook(end)]
    for layer, function in functions.items():
        place, kept = structure.places[layer - 1], waiting[layer]

        def keep_input(module: nn.Module, inputs: tuple[Tensor, ...], kept: list[Tensor] = kept) -> None:
            if not kept:  # DeBERTa calls it once more, on positions
                kept.append(inputs[0])  # [batch, length, hidden]

        def add(
            module: nn.Module,
            inputs: Any,
            output: Tensor,
            kept: list[Tensor] = kept,
            function: Function = function,
            layer: int = layer,
        ) -> Tensor:
            h = kept.pop()
            return output if layer in skipped else output + function(h, masks.of(h))  # [batch, length, hidden]

        hooks += [place.first.register_forward_pre_hook(keep_input), place.feed_forward.register_forward_hook(add)]
    encoder = {name: parameter for name, (_, parameter) in structure.parameters().items() if encoder_trains}
    layers: dict[str, Any] = {"part_layers": tuple(functions), "skip": skipped}
    lowest = 0 if encoder_trains else min(functions)
    return attached_parts(model, structure, parts, lowest, encoder, hooks=hooks, switched=masks.forget, **layers)


class PassMasks:
    """The attention mask of the pass that a layer's input is of.

    A step may make several passes before its backward pass, in which checkpointing computes layers again: outside of
    any pass, with the inputs that it kept. So the mask of each input is kept by its memory, until the next step.
    """

    def __init__(self) -> None:
        self._mask: Tensor | None = None
        self._inside = False
        self._known: dict[tuple[int, torch.Size], Tensor | None] = {}

    def begin(self, mask: Tensor | None) -> None:
        """A pass begins, with this mask ``[batch, length]``."""
        self._mask, self._inside = mask, True

    def end(self) -> None:
        """The pass ends."""
        self._inside = False

    def of(self, h: Tensor) -> Tensor | None:
        """The mask of a layer's input ``[batch, length, hidden]``."""
        place = h.data_ptr(), h.shape
        if not self._inside:
            return self._known.get(place, self._mask)
        if torch.is_grad_enabled():
            self._known[place] = self._mask
        return self._mask

    def forget(self, training: bool) -> None:
        """A step begins, or an evaluation: memory is reused from here on."""
        self._known.clear()
