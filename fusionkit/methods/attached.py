"""A method in effect on a model: what it trains, what is kept of it, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fusionkit.errors import StoreError, UsageError
from fusionkit.methods.structure import Structure

PARTS = "method_parts"  # the name that a method's own modules have in the model


@dataclass(eq=False)
class Attached:
    """What :func:`fusionkit.methods.apply` returns; methods fill it in.

    Attributes:
        model: the model, changed in place. Its own ``forward`` has the method in effect.
        trainable: the parameters that train, by their names in the model. Exactly these have ``requires_grad``.
        lowest_layer: the lowest layer that trains or that something new is added to: 0 for the embeddings, L + 1 for
            nothing. Layers below it run in evaluation mode and need no gradients.
        positions_added: vectors put in front of each sequence inside the model, cut off its output again; inputs may be
            that much shorter than the model's maximum.
        rates: rates of their own for some trainables, by name; the others take the run's.
        penalty: a second loss, a scalar to be added to the task's, where the method has one.
        begin_step: called before each step with the number of steps done and of all steps, where the method has phases;
            True where what trains has changed, so that an optimizer's moments are to be forgotten.
    """

    model: Any
    structure: Structure
    trainable: dict[str, nn.Parameter]
    lowest_layer: int
    positions_added: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    penalty: Callable[[], Tensor] | None = None
    begin_step: Callable[[int, int], bool] | None = None
    hooks: Sequence[RemovableHandle] = ()

    @property
    def parts(self) -> nn.Module | None:
        """The modules that the method added to the model; None where it added none."""
        return getattr(self.model, PARTS, None)

    def count(self) -> int:
        """How many numbers train."""
        return sum(parameter.numel() for parameter in self.trainable.values())

    def train(self, mode: bool = True) -> None:
        """Training mode from the lowest layer up, or evaluation mode everywhere."""
        self.model.eval()
        if not mode:
            return
        if self.lowest_layer == 0:
            self.model.train()
            return
        own = self.structure
        for number, layer in enumerate(own.layers, 1):
            layer.train(number >= self.lowest_layer)
        for leaf in own.order:
            if own.layer_of(leaf) > own.depth >= self.lowest_layer:
                leaf.train()
        if self.parts is not None:
            self.parts.train()

    def delta(self) -> dict[str, Tensor]:
        """A copy of all that the method trained, by name: what is kept of a run, with the encoder's identity."""
        return {
            name: parameter.detach().to("cpu", copy=True).contiguous() for name, parameter in self.trainable.items()
        }

    def load_delta(self, delta: Mapping[str, Tensor]) -> None:
        """Put a kept delta in place.

        Raises:
            StoreError: it is of another method or another encoder.
        """
        named = {name: parameter.shape for name, parameter in self.trainable.items()}
        if named != {name: tensor.shape for name, tensor in delta.items()}:
            raise StoreError(
                "this delta is of another method or another encoder",
                expected=_some(named),
                received=_some({name: tensor.shape for name, tensor in delta.items()}),
                remedy="give the method and the encoder that it was trained with",
            )
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(delta[name])

    def merge(self) -> None:
        """Make what was trained part of the encoder's weights, so that the model is a plain one of its class.

        Raises:
            UsageError: the method cannot be merged.
        """
        if self.parts is not None or self.hooks:
            raise UsageError(
                "this method cannot be merged into the encoder's weights",
                expected="a method whose row says that it merges",
                remedy="keep the delta, and apply the method again",
            )
        self.freeze()

    def detach(self) -> None:
        """Take the method out of the model; weights of the encoder that it trained stay as they are."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = ()
        if self.parts is not None:
            delattr(self.model, PARTS)
        self.freeze()

    def freeze(self) -> None:
        """No parameter trains any more."""
        self.model.requires_grad_(False)
        self.trainable = {}


def trains(model: Any, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Let exactly these parameters train."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return dict(parameters)


def _some(shapes: Mapping[str, Any]) -> str:
    first = [f"{name} {list(shape)}" for name, shape in list(shapes.items())[:3]]
    return f"{len(shapes)} tensors: {', '.join(first)}{', …' if len(shapes) > 3 else ''}"
