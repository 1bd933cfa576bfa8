"""Loading an encoder by bundled name, folder or hub id, and making sure that it can be used."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils.hub import cached_file

from fusionkit.devices import device_of
from fusionkit.encoder.identity import max_length_of, pooling_of, sentence_rows_of, tokenizer_hash, weights_hash
from fusionkit.encoder.masked_lm import load_masked_lm
from fusionkit.encoder.model import Encoder, Loading
from fusionkit.encoder.quiet_transformers import quiet_transformers
from fusionkit.encoder.refusals import (
    BUNDLED,
    not_loadable,
    probe,
    refuse_empty_tokenizer,
    refuse_misspelt,
    refuse_random_weights,
)
from fusionkit.errors import EncoderError, FusionkitError, UsageError


def load_encoder(
    reference: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    words: bool = False,
    trust_remote_code: bool = False,
    masked_lm: bool = False,
) -> Encoder:
    """Load an encoder by bundled name, folder or hub id, and make sure that it can be used.

    Encoder-only and decoder-only models are taken whole, of encoder–decoder models the encoder half.

    Args:
        words: the texts are lists of words (byte-level tokenizers then need a space before each).
        masked_lm: its mask token and LM head too.

    Raises:
        UsageError: a bundled name is misspelt, a file is given, or there is no such device.
        EncoderError: no such model, no safetensors weights, no fast tokenizer or no hidden states; or no LM
            head, where it is asked for.
    """
    how = (device, compute_dtype, words, trust_remote_code, masked_lm)
    place = str(BUNDLED[reference]()) if reference in BUNDLED else str(Path(reference).expanduser())
    named_folder = reference not in BUNDLED and Path(place).is_dir()
    if reference not in BUNDLED and not named_folder:
        refuse_misspelt(reference, Path(place))
        place = reference
    elif revision is not None:
        raise UsageError(
            f"encoder {reference!r} has no revisions",
            expected="a revision with a hub id",
            received=revision,
            remedy="leave the revision out, or give the hub id",
        )
    target = device_of(device)
    with quiet_transformers():
        try:
            revision = _commit(place, revision) or revision
            options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
            config = transformers.AutoConfig.from_pretrained(place, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                place, **options, **({"add_prefix_space": True} if words else {})
            )
            model, report = transformers.AutoModel.from_pretrained(
                place,
                **options,
                use_safetensors=True,
                dtype=getattr(torch, compute_dtype),
                output_loading_info=True,
            )
        except FusionkitError:
            raise
        except Exception as error:  # OSError, ValueError, KeyError, ImportError and the library's own
            raise not_loadable(reference, error) from error
    if not getattr(tokenizer, "is_fast", False):
        raise EncoderError(
            f"encoder {reference!r} has no fast tokenizer",
            expected="a tokenizer.json, which aligns words and sub-tokens",
            received=type(tokenizer).__name__,
            remedy="convert its tokenizer with transformers and save it beside the model",
        )
    refuse_empty_tokenizer(reference, tokenizer)
    whole, model = model, _text_half(model)
    refuse_random_weights(reference, whole, model, report["missing_keys"])
    # Frozen: no dropout, no gradients.
    model = model.eval().requires_grad_(False).to(target)
    layers, hidden = probe(reference, model, target)
    pooling = pooling_of(place, revision)
    return Encoder(
        name=reference,
        model=model,
        tokenizer=tokenizer,
        layers=layers,
        hidden=hidden,
        max_length=max_length_of(config, tokenizer),
        parameters=sum(p.numel() for p in model.parameters()),
        sentence_rows=sentence_rows_of(pooling, config, tokenizer),
        identity={
            "weights": weights_hash(model, report["missing_keys"]),
            "tokenizer": tokenizer_hash(tokenizer),
            "revision": revision,
        },
        device=target,
        accepts=_accepted(model, tokenizer),
        masked_lm=load_masked_lm(reference, place, tokenizer, options) if masked_lm else None,
        of_sentences=pooling is not None,
        loading=Loading(str(Path(place).resolve()) if named_folder else reference, revision, *how),
    )


def load_again(loading: Loading) -> Encoder:
    """The encoder that was loaded so, in another process; errors as :func:`load_encoder`."""
    return load_encoder(**asdict(loading))


def _commit(place: str, revision: str | None) -> str | None:
    """The commit of a hub id's revision, read from the path of its files in the cache."""
    if Path(place).is_dir():
        return None
    file = cached_file(place, "config.json", revision=revision)
    found = re.search(r"/snapshots/([0-9a-f]{40})/", Path(file or "").as_posix())
    return found and found.group(1)


def _text_half(model: Any) -> Any:
    """The encoder of an encoder–decoder model, or any other model itself.

    The modules decide, not the configuration: T5's encoder alone is configured as no encoder–decoder.
    """
    parts = {name for name, _ in model.named_children()}
    return model.get_encoder() if {"encoder", "decoder"} <= parts else model


def _accepted(model: Any, tokenizer: Any) -> frozenset[str]:
    """The arguments its forward takes, without token types where its tokenizer gives none (GPT-2)."""
    unused = {"token_type_ids"} - set(tokenizer.model_input_names)
    return frozenset(inspect.signature(model.forward).parameters) - unused
