"""The file of the encoder's LM head in a store of masked sub-tokens: its fields in the manifest, and reading it.

    STORE/lm_head.safetensors     dense, layer_norm and decoder, each with weight and bias, float32

The manifest holds the activation and the layer norm's epsilon, under ``identity.mlm.lm_head``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from fusionkit.errors import StoreError
from fusionkit.io.places import Place, place_errors, read_bytes
from fusionkit.lm_head import LmHead
from fusionkit.store.layout import LM_HEAD


def lm_head_facts(head: LmHead) -> dict[str, Any]:
    """The fields of a head in the manifest."""
    return {"sha256": head.sha256, "activation": head.activation, "layer_norm_eps": head.layer_norm_eps}


def read_lm_head(store: Place, manifest: Mapping[str, Any]) -> LmHead:
    """The head that a store of masked sub-tokens holds.

    Raises:
        StoreError: its file is missing or damaged.
    """
    facts = manifest["identity"]["mlm"]["lm_head"]
    path = store / LM_HEAD
    try:
        with place_errors(path):
            content = read_bytes(path)
    except OSError as error:
        raise _damaged(path, "the encoder's LM head", error.strerror or str(error)) from error
    if (found := hashlib.sha256(content).hexdigest()) != facts["sha256"]:
        raise _damaged(path, f"sha256 {facts['sha256']}", f"{len(content):,} bytes with sha256 {found}")
    try:
        return LmHead(load(content), facts["activation"], facts["layer_norm_eps"])
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, "the weights of an LM head", str(error).splitlines()[0]) from error


def _damaged(path: Place, expected: str, received: str) -> StoreError:
    remedy = "see `fusionkit verify`, then encode again with --overwrite"
    return StoreError(f"{path} is damaged", expected=expected, received=received, remedy=remedy)
