"""What a transformer consists of, found by one traced forward pass instead of a table of architectures.

The trace runs four sub-tokens without a mask and notes which modules run and in which order. That gives the layers,
what runs before and behind them, and the places where adapters sit. Parameters are in use if the last hidden states
depend on them by autograd's graph; a pooler's are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.specs import parse_layers

TRACED, SUBTOKEN = 4, 3  # how many sub-tokens, and which: none that stands for padding


@dataclass(frozen=True)
class Place:
    """The modules of one layer that a method hooks or replaces.

    Attributes:
        first: the leaf that gets the layer's input. attention, feed_forward: the leaves whose outputs the residual sums
            add: an output projection, or the dropout behind it. down: the feed-forward network's last linear map.
    """

    first: nn.Module
    attention: nn.Module
    feed_forward: nn.Module
    down: nn.Module


@dataclass(frozen=True)
class Structure:
    """The parts of one encoder.

    Attributes:
        depth: L, how many layers run. hidden: d, the width of the hidden states. layers: the modules of layers 1 … L;
            one module where the encoder runs the same one L times (ALBERT).
        order: the leaf modules in the order of their first call. used: the names of the parameters that the last hidden
            states depend on, in the model's order.
    """

    model: Any
    depth: int
    hidden: int
    layers: tuple[nn.Module, ...]
    order: tuple[nn.Module, ...]
    used: tuple[str, ...]

    @cached_property
    def _layer_of(self) -> dict[nn.Module, int]:
        """The layer of each module: 0 before the first layer, L + 1 behind the last."""
        found = {part: number for number, layer in enumerate(self.layers, 1) for part in layer.modules()}
        ends = max((place for place, leaf in enumerate(self.order) if leaf in found), default=-1)
        return found | {leaf: self.depth + 1 for leaf in self.order[ends + 1 :] if leaf not in found}

    def layer_of(self, module: nn.Module) -> int:
        """The layer that a module belongs to: 1 … L, 0 for what runs before or beside them, L + 1 behind."""
        return self._layer_of.get(module, 0)

    @cached_property
    def most_positions(self) -> int | None:
        """The number of positions in the encoder's table, without those that RoBERTa skips; None without a table."""
        size = getattr(self.model.config, "max_position_embeddings", None)
        for leaf in self.order:
            if isinstance(leaf, nn.Embedding) and leaf.num_embeddings == size and self.layer_of(leaf) == 0:
                return leaf.num_embeddings - (0 if leaf.padding_idx is None else leaf.padding_idx + 1)
        return None

    def is_norm(self, name: str) -> bool:
        """True for a parameter of a layer norm or another norm, by its class's name."""
        return "Norm" in type(self.model.get_submodule(name.rpartition(".")[0])).__name__

    def parameters(self) -> dict[str, tuple[int, nn.Parameter]]:
        """The parameters in use by name, each with its layer."""
        owners = {f"{prefix}.{name}".lstrip("."): module for prefix, module in self.model.named_modules()
                  for name in module._parameters}  # fmt: skip
        return {name: (self.layer_of(owners[name]), self.model.get_parameter(name)) for name in self.used}

    def span(self, text: str, method: str) -> range:
        """The layers that a method's option ``layers`` names: ``all``, or a slice of 0 … L like ``-6:`` or ``1:7``.

        Raises:
            UsageError: there are no such layers, or all of the encoder's layers are one module.
        """
        if text == "all":
            return range(1, len(self.layers) + 1)
        self.refuse_one_layer(f"{method} in some layers")
        return layer_span(text, self.depth, method)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The places of each layer.

        Raises:
            UsageError: a layer has fewer than two linear maps to the hidden size, or both of the last two may be of its
                feed-forward network.
        """
        return tuple(self._place(layer) for layer in range(1, len(self.layers) + 1))

    def _place(self, layer: int) -> Place:
        leaves = [leaf for leaf in self.order if self.layer_of(leaf) == layer]
        wide = [place for place, leaf in enumerate(leaves) if _width(leaf) == self.hidden]
        if len(wide) < 2:
            raise self._no_places(f"two linear maps to {self.hidden} or more in each layer", len(wide), layer)
        before, down = (self._inputs(leaves[place]) for place in wide[-2:])
        if down == self.hidden or before < self.hidden > down:  # then wide[-2] may lie inside that network
            raise self._no_places(f"feed-forward networks wider than {self.hidden}", down, layer)
        ends = [place + (place + 1 < len(leaves) and isinstance(leaves[place + 1], (nn.Dropout, nn.Identity)))
                for place in wide[-2:]]  # fmt: skip
        return Place(leaves[0], leaves[ends[0]], leaves[ends[1]], leaves[wide[-1]])

    def _inputs(self, linear: Any) -> int:
        """The number of inputs of a linear map to the hidden size."""
        return int(linear.weight.numel()) // self.hidden

    def _no_places(self, expected: str, received: int, layer: int) -> UsageError:
        return UsageError(
            f"the places for adapters in {type(self.model).__name__} cannot be found",
            expected=expected,
            received=f"{received} in layer {layer}",
            remedy="choose another method, for example full or bitfit",
        )

    def refuse_one_layer(self, method: str, remedy: str = "choose another method, or another encoder") -> None:
        """Raise UsageError for a method or option that treats layers differently, where all layers are one module."""
        if len(self.layers) < self.depth:  # one module runs L times
            raise UsageError(
                f"{method} cannot be used with {type(self.model).__name__}",
                expected="an encoder whose layers have weights of their own",
                received=f"one layer that runs {self.depth} times",
                remedy=remedy,
            )


def _width(leaf: nn.Module) -> int | None:
    """The output width of a linear map; GPT-2's has another class."""
    found: int | None = getattr(leaf, "out_features", None) or getattr(leaf, "nf", None)
    return found


def layer_span(text: str, depth: int, method: str) -> range:
    """The layers among 1 … ``depth`` that a text names; as :meth:`Structure.span`."""
    chosen = [layer for layer in parse_layers(text, depth + 1, f"{method}:layers=") if layer > 0]
    if not chosen or len(chosen) != chosen[-1] - chosen[0] + 1:
        raise UsageError(
            f"{method} has no such span of layers",
            expected=f"all, or a slice like -2: or 1:3, within 1…{depth}",
            received=text,
            remedy="choose a span among these",
        )
    return range(chosen[0], chosen[-1] + 1)


def structure_of(model: Any) -> Structure:
    """The structure of a ``transformers.PreTrainedModel``. Its weights may lie on the meta device.

    Raises:
        UsageError: its layers cannot be found.
    """
    calls: list[nn.Module] = []
    leaves: list[nn.Module] = []

    def note(module: nn.Module, *_: Any) -> None:
        calls.append(module)
        if next(module.children(), None) is None:
            leaves.append(module)

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        states, used = run_trace(model)
    finally:
        for hook in hooks:
            hook.remove()
    depth = len(states) - 1
    return Structure(
        model=model,
        depth=depth,
        hidden=states[-1].shape[-1],
        layers=_layers(model, depth, Counter(calls)),
        order=tuple(dict.fromkeys(leaves)),
        used=tuple(name for name, parameter in model.named_parameters() if parameter in used),
    )


def run_trace(model: Any) -> tuple[tuple[Tensor, ...], set[Any]]:
    """The hidden states of a few sub-tokens, and the parameters that the last of them depend on."""
    device = next(model.parameters()).device
    ids = torch.full((1, TRACED), SUBTOKEN, device=device)
    with _gradients(model):
        states = model(input_ids=ids, output_hidden_states=True, return_dict=True).hidden_states
    return states, _in_graph(states[-1])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; every module's mode is restored afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def _gradients(model: Any) -> Iterator[None]:
    """Evaluation mode with gradients for every parameter; both are restored afterwards."""
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    for parameter in wanted:
        parameter.requires_grad_(True)
    try:
        with evaluating(model), torch.enable_grad():
            yield
    finally:
        for parameter, gradient in wanted.items():
            parameter.requires_grad_(gradient)


def _in_graph(output: Tensor) -> set[Any]:
    """The parameters that a tensor was computed from; nothing is differentiated."""
    todo, seen, found = [output.grad_fn], set(), set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(variable)
        todo += [following for following, _ in node.next_functions]
    return found


def _layers(model: Any, depth: int, calls: Counter[nn.Module]) -> tuple[nn.Module, ...]:
    """The outermost list of L modules that each run once, or the outermost module that runs L times."""
    lists = (tuple(module) for module in model.modules() if isinstance(module, nn.ModuleList))
    for layers in lists:
        if len(layers) == depth and all(calls[layer] == 1 for layer in layers):
            return layers
    for module in model.modules():
        if calls[module] == depth > 1 and next(module.children(), None) is not None:
            return (module,)
    raise UsageError(
        f"the layers of {type(model).__name__} cannot be found",
        expected=f"a list of {depth} layers, each run once, or one layer that runs {depth} times",
        received="neither",
        remedy="choose --method frozen, or another encoder",
    )
