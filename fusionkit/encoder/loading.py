"""Load an encoder by bundled name, folder or hub id, and check that it can be used."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils.hub import cached_file

from fusionkit.encoder.masked_lm import load_masked_lm
from fusionkit.encoder.model import Encoder
from fusionkit.encoder.reference import BUNDLED, CHOICES, encoder_place
from fusionkit.encoder.refusals import (
    loading_errors,
    probe,
    quiet_transformers,
    refuse_empty_tokenizer,
    refuse_random_weights,
)
from fusionkit.encoder.settings import unusual_settings
from fusionkit.errors import EncoderError, first_line, unknown_name
from fusionkit.machine.devices import device_of
from fusionkit.specs import LM_HEAD_SOURCES, TF32, parse_untrained, untrained_name

# BERT's limit, for an encoder without its own limit (T5 has relative positions).
DEFAULT_MAX_LENGTH = 512


def load_encoder(
    reference: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    compute_dtype: str = "float32",
    words: bool = False,
    trust_remote_code: bool = False,
    lm_head: str | None = None,
    untrained: int | None = None,
) -> Encoder:
    """Load an encoder by bundled name, folder or hub id, and check that it can be used.

    Encoder-only and decoder-only models are used whole; of encoder–decoder models, the encoder half is used.

    Args:
        compute_dtype: of weights and products, ``float32``, ``bfloat16`` or ``float16``; ``tf32`` is float32 with the
            factors of products rounded to 11 bits, which only a GPU can do: elsewhere they are not rounded.
        words: the texts are lists of words (byte-level tokenizers then need a space before each word).
        lm_head: load the mask token and an LM head too, one of :data:`fusionkit.specs.LM_HEAD_SOURCES`.
        untrained: the seed of random weights in place of the trained ones, initialised as for training from scratch. A
            seed in ``reference`` has the same meaning.

    Raises:
        UsageError: a bundled name or ``lm_head`` is misspelt, a file is given, or there is no such device.
        EncoderError: no such model, no safetensors weights, no fast tokenizer or no hidden states; or no LM head,
            with ``lm_head``.
    """
    reference, told = parse_untrained(reference)
    untrained = told if untrained is None else untrained
    place = encoder_place(reference, revision)
    if lm_head not in (None, *LM_HEAD_SOURCES):
        raise unknown_name("LM head", lm_head, LM_HEAD_SOURCES)
    named_folder = reference not in BUNDLED and Path(place).is_dir()
    target = device_of(device)
    with loading_errors(reference):
        revision = _commit(place, revision) or revision
        # With peft, transformers would load the model that this file names, and weights that may be pickled.
        if _optional_file(place, "adapter_config.json", revision):
            raise EncoderError(
                f"encoder {reference!r} is an adapter of another model",
                expected=CHOICES,
                received="adapter_config.json",
                remedy="merge it into its model: merge_and_unload().save_pretrained(FOLDER)",
            )
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        config = transformers.AutoConfig.from_pretrained(place, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            place, **options, **({"add_prefix_space": True} if words else {})
        )
        dtype = torch.float32 if compute_dtype == TF32 else getattr(torch, compute_dtype)
        if untrained is None:
            model, report = transformers.AutoModel.from_pretrained(
                place, **options, use_safetensors=True, dtype=dtype, output_loading_info=True
            )
        else:
            model, report = _untrained(config, untrained, trust_remote_code).to(dtype), {"missing_keys": set()}
    if not getattr(tokenizer, "is_fast", False):
        raise EncoderError(
            f"encoder {reference!r} has no fast tokenizer",
            expected="a tokenizer.json, which aligns words and sub-tokens",
            received=type(tokenizer).__name__,
            remedy="convert its tokenizer with transformers and save it beside the model",
        )
    refuse_empty_tokenizer(reference, tokenizer)
    # Only the beginning of a long text is tokenised, so its end could not be kept.
    tokenizer.truncation_side = "right"
    whole, model = model, text_half(model)
    refuse_random_weights(reference, whole, model, report["missing_keys"])
    # Frozen: no dropout, no gradients.
    model = model.eval().requires_grad_(False).to(target)
    layers, hidden, causal = probe(reference, model, target)
    with loading_errors(reference):
        pooling = _pooling_of(place, revision)
    return Encoder(
        name=reference if untrained is None else untrained_name(reference, untrained),
        model=model,
        tokenizer=tokenizer,
        layers=layers,
        hidden=hidden,
        max_length=_max_length_of(model, config, tokenizer),
        parameters=sum(p.numel() for p in model.parameters()),
        sentence_rows=_sentence_rows_of(pooling, config, tokenizer, causal),
        identity={
            "weights": _weights_hash(model, report["missing_keys"]),
            "tokenizer": _tokenizer_hash(tokenizer),
            "revision": revision,
            **({"config": settings} if (settings := unusual_settings(model.config)) else {}),
            **({} if untrained is None else {"untrained": untrained}),
        },
        device=target,
        accepts=_accepted(model, tokenizer),
        masked_lm=load_masked_lm(reference, place, tokenizer, options, lm_head, model) if lm_head else None,
        causal=causal,
        compute_dtype=compute_dtype,
        of_sentences=pooling is not None,
        loading={
            "reference": str(Path(place).resolve()) if named_folder else reference,
            "revision": revision,
            "device": device,
            "compute_dtype": compute_dtype,
            "words": words,
            "trust_remote_code": trust_remote_code,
            "lm_head": lm_head,
            "untrained": untrained,
        },
    )


def _untrained(config: Any, seed: int, trust_remote_code: bool) -> Any:
    """A float32 model with its architecture's initial weights. They depend only on the seed and the versions of torch
    and transformers, not on the device. The global generator is left unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed a GPU's generators too
        made: Any = transformers.AutoModel.from_config  # untyped
        return made(config, trust_remote_code=trust_remote_code, dtype=torch.float32)


def tokenizer_of(reference: str) -> Any:
    """The tokenizer of a bundled name, a folder or a hub id that is in the cache.

    Raises:
        EncoderError: it is not on this machine, or needs code of its own.
    """
    reference, _ = parse_untrained(reference)
    place = str(BUNDLED[reference]()) if reference in BUNDLED else str(Path(reference).expanduser())
    with quiet_transformers():
        try:
            return transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # OSError, ValueError and the library's own
            raise EncoderError(
                f"the tokenizer of {reference!r} cannot be read here",
                expected="files on this machine, without code of their own",
                received=first_line(error, kind=True),
            ) from error


def _commit(place: str, revision: str | None) -> str | None:
    """The commit of a hub id's revision, read from the path of its files in the cache."""
    if Path(place).is_dir():
        return None
    file = cached_file(place, "config.json", revision=revision)
    found = re.search(r"/snapshots/([0-9a-f]{40})/", Path(file or "").as_posix())
    return found and found.group(1)


def text_half(model: Any) -> Any:
    """The encoder of an encoder–decoder model, or any other model itself.

    The modules decide, not the configuration: T5's encoder alone has a configuration that says it is no
    encoder–decoder.
    """
    parts = {name for name, _ in model.named_children()}
    return model.get_encoder() if {"encoder", "decoder"} <= parts else model


def _accepted(model: Any, tokenizer: Any) -> frozenset[str]:
    """The arguments of the model's forward, without token types if its tokenizer gives none (GPT-2)."""
    unused = {"token_type_ids"} - set(tokenizer.model_input_names)
    return frozenset(inspect.signature(model.forward).parameters) - unused


def _max_length_of(model: Any, config: Any, tokenizer: Any) -> int:
    """The model's number of positions, without those that models like RoBERTa reserve up to the padding index of their
    table of positions; at most the tokenizer's maximum length.
    """
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(positions, int) or positions <= 0:
        positions = DEFAULT_MAX_LENGTH
    else:
        tables = (module for name, module in model.named_modules() if name.rpartition(".")[2] == "position_embeddings")
        reserved = (at + 1 for table in tables if (at := getattr(table, "padding_idx", None)) is not None)
        positions -= max(reserved, default=0)
    return int(min(positions, tokenizer.model_max_length))


def _optional_file(place: str, name: str, revision: str | None) -> str | None:
    """The path of a file of an encoder; None where it has no such file, or none that can be reached."""
    found: str | None = cached_file(
        place,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found


def _pooling_of(place: str, revision: str | None) -> dict[str, Any] | None:
    """The pooling configuration of a sentence encoder's folder, or None."""
    if (pooling := _optional_file(place, "1_Pooling/config.json", revision)) is None:  # of sentence-transformers
        return None
    try:
        return dict(json.loads(Path(pooling).read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"1_Pooling/config.json: {error}") from error


def _sentence_rows_of(pooling: dict[str, Any] | None, config: Any, tokenizer: Any, causal: bool) -> str:
    """The rows for sentences, the first rule that holds: ``mean`` for a model trained with mean pooling; ``last`` if it
    was trained with the last token, or is causal, so that only the last token sees the whole text; in a model that is
    no encoder–decoder ``cls`` if texts begin with the CLS token, ``last`` if they end with it (XLNet); else ``mean``.
    """
    fields = pooling or {}
    if fields.get("pooling_mode_mean_tokens") or fields.get("pooling_mode") == "mean":
        return "mean"
    if causal or fields.get("pooling_mode_lasttoken") or fields.get("pooling_mode") == "lasttoken":
        return "last"
    if tokenizer.cls_token_id is None or config.is_encoder_decoder:
        return "mean"
    ids = tokenizer("a b")["input_ids"]
    return next((rows for rows, end in (("cls", ids[:1]), ("last", ids[-1:])) if tokenizer.cls_token_id in end), "mean")


def _weights_hash(model: Any, missing_keys: Collection[str]) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all weights, independent of the file layout.

    Weights that the checkpoint lacks (a pooler's) are left out: they are random and differ at each loading.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name in missing_keys:
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tokenizer_hash(tokenizer: Any) -> str:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # State that earlier calls set; it does not belong to the tokenizer's identity.
    backend["truncation"] = backend["padding"] = None
    return hashlib.sha256(json.dumps(backend, sort_keys=True).encode()).hexdigest()
