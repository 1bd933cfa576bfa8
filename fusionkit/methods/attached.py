"""A method in effect on a model: what it trains, what is kept of it, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fusionkit.errors import StoreError, UsageError
from fusionkit.methods.structure import Structure

PARTS = "method_parts"  # the name that a method's own modules have in the model


class SkippedLayers:
    """The layers whose parts are out of effect; called with others, these."""

    def __init__(self) -> None:
        self._layers: Collection[int] = ()

    def __call__(self, layers: Collection[int]) -> None:
        # These replace the layers of the last call.
        self._layers = frozenset(layers)

    def __contains__(self, layer: int) -> bool:
        return layer in self._layers


@dataclass(eq=False)
class Attached:
    """What :func:`fusionkit.methods.apply` returns; methods fill it in.

    Attributes:
        model: the model, changed in place. Its own ``forward`` has the method in effect.
        trainable: the parameters that train, by their names in the model. No others have ``requires_grad``; a method
            that has phases takes it from those that train no more.
        lowest_layer: the lowest layer that trains or that something new is added to: 0 for the embeddings, L + 1 for
            nothing. Layers below it run in evaluation mode and need no gradients.
        positions_added: how many vectors are put in front of each sequence inside the model, and cut off its output;
            the longest input is that much shorter than the model's maximum.
        rates: the rates of trainables that do not take the run's rate, by name. undecayed: the names of those that
            weight decay leaves as they are, besides vectors.
        penalty: a second loss, a scalar to be added to the task's, where the method has one.
        begin_step: called before each step with the number of steps done and of all steps, where the method has phases;
            True where what trains has changed: make a new optimizer.
        hooks: removed by ``detach``. switched: called when training mode or evaluation mode begins. read, write: get
            and load the delta, where it is not simply the trainables. read_state, write_state: get and load all that
            resuming needs, where that is more than the trainables. fold, undo: do the work of ``merge`` and
            ``detach``, where weights have been replaced.
        part_layers: the layers that have parts which can be taken out of effect; skip: takes the parts of some layers
            out of effect, and puts those of all others back.
        use: puts a task's own weights into the model, where several tasks have own weights
            (:mod:`fusionkit.methods.per_task`).
    """

    model: Any
    structure: Structure
    trainable: dict[str, nn.Parameter]
    lowest_layer: int
    positions_added: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    undecayed: Collection[str] = ()
    penalty: Callable[[], Tensor] | None = None
    begin_step: Callable[[int, int], bool] | None = None
    hooks: Sequence[RemovableHandle] = ()
    switched: Callable[[bool], None] | None = None
    read: Callable[[], dict[str, Tensor]] | None = None
    write: Callable[[Mapping[str, Tensor]], None] | None = None
    read_state: Callable[[], dict[str, Tensor]] | None = None
    write_state: Callable[[Mapping[str, Tensor]], None] | None = None
    fold: Callable[[], None] | None = None
    undo: Callable[[], None] | None = None
    part_layers: Sequence[int] = ()
    skip: Callable[[Collection[int]], None] | None = None
    use: Callable[[str], None] | None = None
    _mode: bool | None = field(default=None, init=False)  # the last one that was set

    @classmethod
    def of_nothing(cls) -> Attached:
        """No method and no encoder: nothing trains. It is for runs over stored states."""
        nothing: Any = None
        return cls(nn.Identity(), nothing, {}, 0)

    @property
    def parts(self) -> nn.Module | None:
        """The modules that the method added to the model; None where it added none."""
        return getattr(self.model, PARTS, None)

    def count(self) -> int:
        """How many numbers train."""
        return sum(parameter.numel() for parameter in self.trainable.values())

    def train(self, mode: bool = True) -> None:
        """Training mode from the lowest layer up, or evaluation mode everywhere. Call it before each step: some methods
        draw numbers for the step.
        """
        if mode is not self._mode:  # walking through all modules takes a tenth of a GPU's step
            self._set_modes(mode)
        if self.switched is not None:
            self.switched(mode)

    def _set_modes(self, mode: bool) -> None:
        self._mode = mode
        self.model.train(mode and self.lowest_layer == 0)
        own = self.structure
        if mode and self.lowest_layer > 0:
            for number, layer in enumerate(own.layers, 1):
                layer.train(number >= self.lowest_layer)
            for leaf in own.order:
                if own.layer_of(leaf) > own.depth >= self.lowest_layer:
                    leaf.train()
            if self.parts is not None:
                self.parts.train()

    def checkpoint(self) -> None:
        """Compute a layer's activations again in the backward pass instead of keeping them, in training mode.

        Raises:
            UsageError: the encoder does not support it.
        """
        model = self.model
        refuse_checkpointing(model)
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        model.disable_input_require_grads()  # only reentrant checkpointing needs gradients below the lowest layer

    def delta(self) -> dict[str, Tensor]:
        """A copy of all that the method trained, by name: what is kept of a run, with the encoder's identity."""
        return self._copies() if self.read is None else self.read()

    def load_delta(self, delta: Mapping[str, Tensor]) -> None:
        """Load a delta.

        Raises:
            StoreError: it is of another method or another encoder.
        """
        (self.write or self._put)(delta)

    def state(self) -> dict[str, Tensor]:
        """A copy of all that resuming needs of the method, by name. For most methods it is the delta."""
        return self._copies() if self.read_state is None else self.read_state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state.

        Raises:
            StoreError: it is of another method or another encoder.
        """
        (self.write_state or self._put)(state)

    def merge(self) -> None:
        """Make what was trained part of the encoder's weights, so that the model is a plain one of its class.

        Raises:
            UsageError: the method cannot be merged.
        """
        if self.fold is not None:
            self.fold()
        elif self.parts is not None or self.hooks:
            raise UsageError(
                "this method cannot be merged into the encoder's weights",
                expected="a method whose row says that it merges",
                remedy="keep the delta, and apply the method again",
            )
        self._freeze()

    def detach(self) -> None:
        """Take the method out of the model. Weights of the encoder itself that it trained stay as they are."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = ()
        if self.undo is not None:
            self.undo()
        if self.parts is not None:
            delattr(self.model, PARTS)
        self._freeze()

    def _freeze(self) -> None:
        self.model.requires_grad_(False)
        self.trainable = {}

    def _copies(self) -> dict[str, Tensor]:
        return {name: copied(parameter) for name, parameter in self.trainable.items()}

    def _put(self, found: Mapping[str, Tensor]) -> None:
        refuse_other({name: parameter.shape for name, parameter in self.trainable.items()}, found)
        with torch.no_grad():
            for name, parameter in self.trainable.items():
                parameter.copy_(found[name])


def attached_parts(
    model: Any, structure: Structure, parts: nn.Module, lowest_layer: int, also: Mapping[str, nn.Parameter], **more: Any
) -> Attached:
    """Add a method's own modules to the model, on its device and in its type, and let them train.

    Args:
        also: parameters of the encoder that train beside them. more: further fields of :class:`Attached`.
    """
    some = next(model.parameters())
    model.add_module(PARTS, parts.to(some.device, some.dtype))
    own = {f"{PARTS}.{name}": parameter for name, parameter in parts.named_parameters()}
    return Attached(model, structure, trains(model, {**also, **own}), lowest_layer, **more)


def refuse_checkpointing(model: Any) -> None:
    """Raise UsageError for a model that cannot compute its layers again in the backward pass."""
    if not model.supports_gradient_checkpointing:
        raise UsageError(
            f"{type(model).__name__} has no gradient checkpointing",
            expected="a model with supports_gradient_checkpointing",
            received="one without",
            remedy="leave checkpointing out, or accumulate smaller batches",
        )


def copied(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU, as safetensors takes it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def refuse_other(shapes: Mapping[str, Any], found: Mapping[str, Tensor]) -> None:
    """Raise StoreError where tensors do not have these names and shapes."""
    if shapes != (received := {name: tensor.shape for name, tensor in found.items()}):
        raise StoreError(
            "what was kept is of another method or another encoder",
            expected=_some(shapes),
            received=_some(received),
            remedy="give the method and the encoder that it was trained with",
        )


def trains(model: Any, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Let exactly these parameters train; returns them."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return dict(parameters)


def _some(shapes: Mapping[str, Any]) -> str:
    first = [f"{name} {list(shape)}" for name, shape in list(shapes.items())[:3]]
    return f"{len(shapes)} tensors: {', '.join(first)}{', …' if len(shapes) > 3 else ''}"
