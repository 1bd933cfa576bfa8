"""The layers above layer k of an encoder, applied to known states of layer k: the same states as from a whole pass.

    z_{k+1}, …, z_L = layers k + 1 … L (z_k)

The model runs as usual over the sequences' sub-tokens and their mask, so that it makes its own masks, positions,
rotary angles and relative biases, whatever its architecture. Layers 1 … k do nothing: each passes its input on, in the
form that its output had in a trial pass. Layer k returns ``z_k`` instead.

A lower layer may output more than its states. What is one of its inputs is passed on too. Where it computes an output
that a layer above needs (T5's first layer computes the position biases of all layers), the layer runs as usual, without
gradients, and its states are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.encoder import Encoder
from fusionkit.errors import CannotStartError, StoppedError, UsageError
from fusionkit.methods.attached import Attached
from fusionkit.methods.structure import evaluating

LEAST, MOST = 16, 1040  # sub-tokens of the longest sequence that is tried
TOLERANCE = 1e-6  # relative to the largest state; a missing mask or position changes far more
Inputs = tuple[Tensor, Tensor, Tensor]
WINDOWS = ("sliding_window", "local_attention", "attention_window")  # names of attention windows in configurations


class UpperLayers:
    """Layers ``start + 1 … L`` of an encoder with a method.

    Args:
        start: k, from 1 up to the layer below the lowest one that the method touches.

    Raises:
        UsageError: there is no such layer, or the states differ from those of a whole pass. Two sequences are tried,
            one of them padded; the longer one exceeds the attention window where there is one, up to ``MOST``.
    """

    def __init__(self, encoder: Encoder, attached: Attached, start: int) -> None:
        structure = attached.structure
        if not 1 <= start < attached.lowest_layer:
            raise UsageError(
                f"no run of this method starts from layer {start}",
                expected=f"a layer from 1 to {attached.lowest_layer - 1}, below the lowest one that the method changes",
                received=str(start),
                remedy="choose a lower layer, or --from-layer none",
            )
        try:
            structure.refuse_one_layer("--from-layer")
        except UsageError as error:
            raise CannotStartError(
                error.what, expected=error.expected, received=error.received, remedy=error.remedy
            ) from None
        self.start, self._encoder = start, encoder
        self._lower = structure.layers[:start]
        tried = _tried(encoder)
        with torch.no_grad(), evaluating(encoder.model):
            whole = self._whole(tried)
            for runs in (False, True):  # most layers need not run for their other outputs
                self._runs = runs
                if not (wrong := self._difference(whole, tried)):
                    return
        raise CannotStartError(
            f"{type(encoder.model).__name__} cannot start from layer {start}",
            expected="the states above it to be those of a whole pass",
            received=wrong,
            remedy="choose --from-layer none: training then starts from the text",
        )

    def states(self, known: Tensor, token_ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """The states of each layer, with gradients where they are on; as :meth:`fusionkit.encoder.Encoder.states`.

        Args:
            known: float32 ``[batch, length, hidden]``, the states of layer k.

        Returns:
            L + 1 tensors ``[batch, length, hidden]``. Those of layers below k are not the encoder's states.
        """
        # A hook on layer k + 1 would be gone when checkpointing computes that layer again.
        for layer, form in zip(self._lower, self._forms, strict=True):
            layer.forward = _passing(layer.forward, form, self._runs, known)
        try:
            found = self._encoder.states(token_ids, attention_mask, segments)
        finally:
            for layer in self._lower:
                del layer.forward
        return (*found[: self.start], known, *found[self.start + 1 :])

    def _whole(self, tried: Inputs) -> tuple[Tensor, ...]:
        """The states of a whole pass; it also notes the form of the lower layers' outputs."""
        self._forms: list[_Form] = []

        def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            self._forms.append(_Form.of(output, _inputs(given, named)))

        hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in self._lower]
        try:
            return self._encoder.states(*tried)
        finally:
            for hook in hooks:
                hook.remove()

    def _difference(self, whole: tuple[Tensor, ...], tried: Inputs) -> str:
        """How the states of real sub-tokens differ from those of a whole pass; empty where they do not."""
        real = tried[1].bool()
        try:
            short = self.states(whole[self.start].clone(), *tried)
        except StoppedError:
            raise
        except Exception as error:  # the model's own code may need outputs of its lower layers
            return f"{type(error).__name__}: {error}"
        for layer in range(self.start + 1, len(whole)):
            wanted, found = whole[layer][real], short[layer][real]  # [real sub-tokens, hidden]
            largest, off = float(wanted.abs().max()), float((found - wanted).abs().max())
            if not off <= TOLERANCE * largest:
                return f"states of layer {layer} that differ by {off:.2g}, of {largest:.2g} at most"
        return ""


@dataclass(frozen=True)
class _Form:
    """What a layer outputs besides the states.

    Attributes:
        keys: for each part after the states in an output tuple, the place or name of the input that it is, None where
            it is no input; None instead of the list where the output is only the states. makes: whether some part is
            neither an input nor None, so that the layer computes it.
    """

    keys: Sequence[int | str | None] | None
    makes: bool

    @classmethod
    def of(cls, output: Any, inputs: Mapping[int | str, Any]) -> _Form:
        if not isinstance(output, tuple):
            return cls(None, makes=False)
        parts = output[1:]
        keys = [next((key for key, value in inputs.items() if value is part is not None), None) for part in parts]
        return cls(keys, any(key is None and part is not None for key, part in zip(keys, parts, strict=True)))


def _passing(forward: Callable[..., Any], form: _Form, runs: bool, known: Tensor) -> Callable[..., Any]:
    """The replacement for a lower layer's ``forward``; it returns ``known`` as the states."""

    def hand_on(*given: Any, **named: Any) -> Any:
        if form.keys is None:
            return known
        if runs and form.makes:
            with torch.no_grad():
                return (known, *forward(*given, **named)[1:])
        inputs = _inputs(given, named)
        return (known, *(None if key is None else inputs[key] for key in form.keys))

    return hand_on


def _inputs(given: Sequence[Any], named: Mapping[str, Any]) -> dict[int | str, Any]:
    """A module's inputs by place or name."""
    found: dict[int | str, Any] = dict(enumerate(given))
    return found | dict(named)


def _tried(encoder: Encoder) -> Inputs:
    """Sub-tokens, mask and segments ``[2, length]``; the second sequence is half as long as the first."""
    config = encoder.model.config
    told = [getattr(config, name, None) for name in WINDOWS]  # Longformer has a list, one window a layer
    windows = [size for one in told for size in (one if isinstance(one, (list, tuple)) else [one])]
    seen = [size + 8 for size in windows if isinstance(size, int)]
    length = min(encoder.max_length, max(LEAST, *seen, 0), MOST)
    words = torch.randint(encoder.model.get_input_embeddings().num_embeddings, (2, length),
                          generator=torch.Generator().manual_seed(0))  # fmt: skip
    mask = torch.ones_like(words)
    mask[1, length // 2 :] = 0
    ids = torch.where(mask.bool(), words, encoder.pad_id)
    return ids.to(encoder.device), mask.to(encoder.device), torch.zeros_like(ids, device=encoder.device)
