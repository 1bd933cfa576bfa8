"""The file of the encoder's LM head in a store of masked sub-tokens: its fields in the manifest, and reading it.

    STORE/lm_head.safetensors     dense, layer_norm and decoder, each with weight and bias, float32

The manifest holds the activation and the layer norm's epsilon, under ``identity.mlm.lm_head``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from fusionkit.errors import first_line
from fusionkit.io.files import checked_bytes, damaged
from fusionkit.io.places import Place
from fusionkit.lm_head import LmHead
from fusionkit.store.presence import LM_HEAD

REMEDY = "see `fusionkit verify`, then encode again with --overwrite"


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
    content = checked_bytes(path, facts["sha256"], "the encoder's LM head", REMEDY)
    try:
        return LmHead(load(content), facts["activation"], facts["layer_norm_eps"])
    except (SafetensorError, ValueError) as error:
        raise damaged(path, "the weights of an LM head", first_line(error), REMEDY) from error
