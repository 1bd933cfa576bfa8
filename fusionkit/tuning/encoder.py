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
from fusionkit.encoder.reference import BUNDLED
from fusionkit.encoder.refusals import CHECK_PLACE
from fusionkit.errors import EncoderError, FusionkitError, UsageError
from fusionkit.machine.devices import device_of
from fusionkit.methods import apply, parse_method
from fusionkit.methods.attached import Attached
from fusionkit.methods.per_task import per_task
from fusionkit.specs import RunSpec, parse_untrained
from fusionkit.store.same_encoder import refuse_other_encoder
from fusionkit.tasks import parts_of


@dataclasses.dataclass(frozen=True)
class TunedEncoder:
    """An encoder and the method that trains it."""

    encoder: Encoder
    attached: Attached


def load_tuned(store: Stores, spec: RunSpec, device: torch.device, trust_remote_code: bool = False) -> TunedEncoder:
    """The encoder whose identity a store has, with the method of a run.

    Weights that the method adds are drawn from the global generator.

    Raises:
        EncoderError: it cannot be loaded, or is not the one of the store.
        UsageError: it cannot take the method.
    """
    name, identity = store.manifest["encoder"]["name"], store.manifest["identity"]
    return tuned(encoder_of(name, identity, str(device), trust_remote_code=trust_remote_code, dtype="float32"), spec)


def encoder_of(
    name: str,
    encoding: Mapping[str, Any],
    device: str,
    place: str | None = None,
    *,
    trust_remote_code: bool = False,
    dtype: str | None = None,
    wanted: str = "the recorded one",
    remedy: str = "put that encoder back, or encode again with this one",
) -> Encoder:
    """The encoder of stored states, frozen, checked by its identity.

    Args:
        name: as it was recorded. encoding: as a run records it, or the identity of a store. place: where the encoder is
            now, if the user named another place. dtype: of its weights; None is the one that they were hashed in.
        wanted, remedy: words of the error where it is another encoder.

    Raises:
        EncoderError: it cannot be loaded, or is another one.
    """
    identity, hashed = encoding["encoder"], encoding["compute_dtype"]
    # The recorded revision is a commit of the recorded repository.
    elsewhere = place not in (None, name) or Path(name).expanduser().is_dir()
    options: dict[str, Any] = {
        "revision": None if elsewhere else identity.get("revision"),
        "device": device,
        "words": encoding["columns"]["tokens"] is not None,
        "trust_remote_code": trust_remote_code,
        "untrained": identity.get("untrained"),
    }
    device_of(device)  # refused here, so that the errors of loading are about the encoder
    try:
        loaded = load_encoder(place or name, compute_dtype=hashed, **options)
    except (EncoderError, UsageError) as error:
        if place is None:
            _refuse_absent(error, name, identity.get("revision"))
        raise
    what = f"encoder {loaded.name!r} is not {wanted}"
    refuse_other_encoder(loaded.identity, identity, what, remedy)
    if dtype is None or dtype == hashed:
        return loaded
    return load_encoder(place or name, compute_dtype=dtype, **options)


def _refuse_absent(error: FusionkitError, name: str, revision: str | None) -> None:
    """Raise EncoderError if loading failed because the recorded encoder is not where its name says.

    Args:
        name, revision: as they were recorded. Of a folder there is no revision.
    """
    reference, _ = parse_untrained(name)
    folder = Path(reference).expanduser()
    if revision is not None and error.remedy == CHECK_PLACE:
        raise EncoderError(
            error.what,
            expected=error.expected,
            received=error.received,
            remedy=f"the store names the encoder {reference} at revision {revision}: check that the hub has it, and "
            "the network",
        ) from error
    if revision is not None or reference in BUNDLED or folder.exists():
        return
    move = "" if folder.is_absolute() else "run the command from the folder where that path exists, or "
    raise EncoderError(
        f"cannot load the encoder {reference!r}",
        expected="the folder that the store was encoded with",
        received=f"no folder {folder.absolute()}",
        remedy=f"the store names the encoder {reference} (as typed when it was encoded): {move}put the encoder there; "
        "where a command has --encoder, it takes another place",
    ) from error


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
    """Set every dropout rate of a model: those of its modules, and those that layers keep as numbers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in RATES:
            if type(getattr(module, name, None)) in (float, int):  # a bool is no rate
                setattr(module, name, rate)


# Names of the rates that transformers' layers pass to a function.
RATES = ("attention_dropout", "activation_dropout", "hidden_dropout", "dropout_prob", "attn_dropout", "dropout")
