"""Facts of a loaded encoder: its maximum length, its pooling, and the hashes that identify it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import cached_file

from fusionkit.encoder.quiet_transformers import quiet_transformers

# For an encoder without a limit of its own (T5 has relative positions): BERT's.
DEFAULT_MAX_LENGTH = 512


def max_length_of(config: Any, tokenizer: Any) -> int:
    """The positions that the model has, less those a RoBERTa spends on its padding index."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(positions, int) or positions <= 0:
        positions = DEFAULT_MAX_LENGTH
    elif "roberta" in config.model_type or config.model_type in ("camembert", "longformer", "mpnet"):
        positions -= (config.pad_token_id or 0) + 1
    return int(min(positions, tokenizer.model_max_length))


def pooling_of(place: str, revision: str | None) -> dict[str, Any] | None:
    """The pooling configuration of a sentence encoder's folder, or None."""
    with quiet_transformers():
        pooling = cached_file(
            place,
            "1_Pooling/config.json",  # where sentence-transformers keeps it
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    return json.loads(Path(pooling).read_text()) if pooling else None


def sentence_rows_of(pooling: dict[str, Any] | None, config: Any, tokenizer: Any) -> str:
    """``mean`` where the model was trained with mean pooling or has no CLS token, else ``cls``."""
    fields = pooling or {}
    if fields.get("pooling_mode_mean_tokens") or fields.get("pooling_mode") == "mean":
        return "mean"
    return "cls" if tokenizer.cls_token_id is not None and not config.is_encoder_decoder else "mean"


def weights_hash(model: Any, missing_keys: Collection[str]) -> str:
    """SHA-256 over names, shapes, types and bytes of all weights: the same in any file layout.

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


def tokenizer_hash(tokenizer: Any) -> str:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # Left behind by earlier calls, not part of what the tokenizer is.
    backend["truncation"] = backend["padding"] = None
    return hashlib.sha256(json.dumps(backend, sort_keys=True).encode()).hexdigest()
