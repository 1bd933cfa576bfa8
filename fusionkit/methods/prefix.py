"""P-tuning v2: attention of each layer over ``[K^p; K x]`` and ``[V^p; V x]`` instead of ``K x`` and ``V x``.

Symbols: ``K^p``, ``V^p`` P trained keys and values per layer and head, that start at N(0, 0.02²); ``K x``, ``V x`` the
layer's own. Positions stay as they are: keys that carry a position get it before the prefix is put in front. All
sub-tokens attend to the whole prefix.
Source: Liu et al. (2022), without their re-parametrisation; the first form is Li and Liang's (2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, SkippedLayers, attached_parts
from fusionkit.methods.structure import Structure, run_trace

STD = 0.02
NAME, OWN = "fusionkit_prefix", "fusionkit_prefix"  # the attention function; a module's attribute with its prefix
_met: list[tuple[nn.Module, Tensor]] = []  # attention modules with their keys, in the order of a trace


class KeysAndValues(nn.Module):
    """``K^p`` and ``V^p`` of one layer. Parameters: 2 P d."""

    def __init__(self, heads: int, positions: int, width: int, layer: int, skipped: SkippedLayers) -> None:
        super().__init__()
        self.layer, self.skipped = layer, skipped
        self.keys, self.values = (nn.Parameter(STD * torch.randn(heads, positions, width)) for _ in range(2))


class Prefix:
    """Trains: keys and values in front of each layer's own. Parameters: 2 L d P."""

    def __init__(self, *, P: int) -> None:  # noqa: N803
        if P < 1:
            raise UsageError(
                "there is no such prefix",
                expected="prefix:P with P at least 1",
                received=f"prefix:{P}",
                remedy="choose a length, for example prefix:20",
            )
        self.positions = P

    def lowest_layer(self, depth: int) -> int:
        return 1

    def attach(self, model: Any, structure: Structure) -> Attached:
        """UsageError for an encoder whose attention cannot be given more keys."""
        before = model.config._attn_implementation
        modules = _attention_modules(model, structure)
        skipped, numbers = SkippedLayers(), range(1, len(modules) + 1)
        parts = nn.ModuleList(
            KeysAndValues(keys.shape[1], self.positions, keys.shape[3], layer, skipped)
            for layer, (_, keys) in zip(numbers, modules, strict=True)
        )
        for (module, _), own in zip(modules, parts, strict=True):
            module.__dict__[OWN] = own  # not registered as a child: it is one of the model's parts

        def undo() -> None:
            model.set_attn_implementation(before)
            for module, _ in modules:
                del module.__dict__[OWN]

        layers: dict[str, Any] = {"part_layers": tuple(numbers), "skip": skipped}
        return attached_parts(model, structure, parts, 1, {}, undo=undo, **layers)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """An attention function for transformers, with a module's prefix; each input ``[batch, heads, length, w]``."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = module.__dict__.get(OWN)
    if own is None:
        _met.append((module, key))
    elif own.layer not in own.skipped:
        batch, _, length, _ = key.shape
        keys, values = (p.to(key.dtype).expand(batch, -1, -1, -1) for p in (own.keys, own.values))
        key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)  # [batch, heads, P + length, w]
        front = key.shape[2] - length
        if attention_mask is not None:  # bool; True is seen
            attention_mask = functional.pad(attention_mask, (front, 0), value=True)  # [batch, 1, length, P + length]
        if (bias := named.get("position_bias")) is not None:
            named["position_bias"] = functional.pad(bias, (front, 0))  # T5's: 0 for the prefix, which has no distance
    named["is_causal"] = False  # the mask alone decides
    return sdpa_attention_forward(module, query, key, value, attention_mask, **named)


def mask(*args: Any, **named: Any) -> Tensor | None:
    """The mask for :func:`attend`, made even where all is seen: without it, that would look like causal attention."""
    from transformers.masking_utils import sdpa_mask

    named.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    found: Tensor | None = sdpa_mask(*args, **named)
    return found


def _attention_modules(model: Any, structure: Structure) -> list[tuple[nn.Module, Tensor]]:
    """The attention module of each layer, with its keys in a trace; the model keeps :func:`attend` as its function.

    Raises:
        UsageError: transformers does not let others compute the attention of each layer.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
    before, found = model.config._attn_implementation, dict[nn.Module, Tensor]()
    _met.clear()
    try:
        model.set_attn_implementation(NAME)
        run_trace(model)
        found.update(_met)
    except ValueError:  # the class computes its attention by itself
        pass
    finally:
        _met.clear()
    if len(found) != structure.depth:
        model.set_attn_implementation(before)
        raise UsageError(
            f"prefix cannot be used with {type(model).__name__}",
            expected=f"{structure.depth} layers, each with attention of its own that transformers lets others compute",
            received=f"{len(found)} of them",
            remedy="choose another method, for example prompt:20 or houlsby:64",
        )
    return list(found.items())
