"""An encoder without the layers above those that are read: the same states for less work.

The remaining layers keep their states. Some encoders normalise the output of their last layer: there one more layer is
kept, so that no layer that is read is the last. Both encoders run on a few sub-tokens, and their states are compared.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from fusionkit.encoder.model import Encoder

TOLERANCE = 1e-6


def truncated(encoder: Encoder, highest: int) -> Encoder:
    """The encoder without the layers above ``highest`` (0 is the embedding output), where they can be removed.

    Its model is cut in place: do not use the given encoder afterwards.

    Returns:
        an encoder with fewer ``layers``, or the given one if its list of layers cannot be found or cut.
    """
    found = _layer_list(encoder.model, encoder.layers - 1)
    if found is None:
        return encoder
    parent, name, whole = found
    wanted = _states(encoder)
    for count in (highest, highest + 1):
        if count >= len(whole):
            break
        setattr(parent, name, whole[:count])
        if _same(encoder, wanted, highest):
            parameters = sum(p.numel() for p in encoder.model.parameters())
            return dataclasses.replace(encoder, layers=count + 1, parameters=parameters)
    setattr(parent, name, whole)
    return encoder


def _layer_list(model: nn.Module, layers: int) -> tuple[nn.Module, str, nn.ModuleList] | None:
    """The only list of ``layers`` modules, with the module that holds it and its name there; None if there is no such
    list, or several.
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == layers
    ]
    return found[0] if len(found) == 1 else None


def _same(encoder: Encoder, wanted: list[Tensor], highest: int) -> bool:
    try:
        states = _states(encoder)
    except Exception:  # the model's own code may need every layer: then none is removed
        return False
    return len(states) > highest and all(
        torch.allclose(states[k], wanted[k], rtol=TOLERANCE, atol=TOLERANCE) for k in range(highest + 1)
    )


def _states(encoder: Encoder) -> list[Tensor]:
    """Each layer's states of two short sequences, one of them padded."""
    ids = torch.arange(16, device=encoder.device).view(2, 8) % len(encoder.tokenizer)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return [state[mask.bool()].float() for state in encoder.forward(ids, mask, torch.zeros_like(ids))]
