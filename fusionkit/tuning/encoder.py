"""The encoder of a store, ready to be trained: loaded by its identity, in float32, with a run's method in effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusionkit.dataset.stores import Stores
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.methods import apply, parse_method
from fusionkit.methods.attached import Attached
from fusionkit.methods.per_task import per_task
from fusionkit.specs import RunSpec
from fusionkit.store.same_encoder import refuse_other_encoder
from fusionkit.tasks import parts_of


@dataclasses.dataclass(frozen=True)
class TunedEncoder:
    """An encoder and the method that trains it."""

    encoder: Encoder
    attached: Attached


def load_tuned(store: Stores, spec: RunSpec, device: torch.device, place: str | None = None) -> TunedEncoder:
    """The encoder whose identity a store has, with the method of a run.

    Weights that the method adds are drawn from the global generator.

    Args:
        place: where the encoder is now, if no longer where it was when the store was encoded.

    Raises:
        EncoderError: it cannot be loaded, or is not the one of the store.
        UsageError: it cannot take the method.
    """
    identity, words = store.manifest["identity"], store.manifest["columns"]["tokens"] is not None
    name = place or store.manifest["encoder"]["name"]
    return tuned(encoder_of(name, identity["encoder"], identity["compute_dtype"], words, str(device)), spec)


def encoder_of(
    name: str, identity: Mapping[str, Any], dtype: str, words: bool, device: str, trust_remote_code: bool = False
) -> Encoder:
    """An encoder in float32, checked by its identity; ``dtype`` is the type of the weights when they were hashed."""
    options: dict[str, Any] = {"device": device, "words": words, "trust_remote_code": trust_remote_code}
    options["untrained"] = identity.get("untrained")
    options["revision"] = None if Path(name).expanduser().is_dir() else identity.get("revision")
    loaded = load_encoder(name, compute_dtype=dtype, **options)
    what = f"encoder {name!r} is not the one that the store was encoded with"
    refuse_other_encoder(loaded.identity, identity, what, "put that encoder back, or encode again with this one")
    return loaded if dtype == "float32" else load_encoder(name, compute_dtype="float32", **options)


def tuned(encoder: Encoder, spec: RunSpec) -> TunedEncoder:
    """Put a run's method, dropout and checkpointing in effect in an encoder, in place; its weights stay the same."""
    if spec.encoder_dropout is not None:  # before the method, which may bring a dropout of its own
        set_dropout(encoder.model, spec.encoder_dropout)
    attached = apply(encoder.model, parse_method(spec.method))
    if spec.is_multi:
        attached = per_task(attached, parse_method(spec.method), list(parts_of(spec)))
    if spec.checkpointing:
        attached.checkpoint()
    return TunedEncoder(encoder, attached)


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set every dropout rate of a model: those of its modules, and those that attention keeps as numbers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)


# Names of the rates that transformers' layers pass to a function.
RATES = ("attention_dropout", "dropout_prob", "attn_dropout", "dropout")
