"""The mask token and the LM head of an encoder, which masking needs.

A checkpoint's own head is found by its structure, not by names: outside the encoder the masked-LM model has one decoder
(its output embeddings), one other linear map and one layer norm. :mod:`fusionkit.lm_head` combines them with each known
activation. The one whose scores on a few sub-tokens are closest to the model's own is chosen, if within
:data:`TOLERANCE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from fusionkit.encoder.refusals import loading_errors
from fusionkit.errors import EncoderError, first_line
from fusionkit.lm_head import ACTIVATIONS, LmHead, head_of_embeddings, lm_scores
from fusionkit.ragged import IntArray
from fusionkit.specs import OWN

REMEDY = "choose the checkpoint of a masked language model, like BERT's or RoBERTa's own"
OR_EMBEDDINGS = f"{REMEDY}, or --lm-head embeddings and train the head"
TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class MaskedLm:
    """The parts of a masked language model beside its encoder.

    Attributes:
        head: the LM head. mask_id: the mask token's id. special_ids: ids that are never masked, int64, ascending.
        ordinary_ids: all other ids, int64, ascending; a random one of them may replace a sub-token.
        made_of: one of :data:`fusionkit.specs.LM_HEAD_SOURCES`.
    """

    head: LmHead
    mask_id: int
    special_ids: IntArray
    ordinary_ids: IntArray
    made_of: str = OWN


def load_masked_lm(
    reference: str, place: str, tokenizer: Any, options: dict[str, Any], made_of: str, encoder: Any
) -> MaskedLm:
    """The mask token of a checkpoint, and its LM head or one of its embeddings.

    Args:
        reference: the encoder as the user named it, for errors. place: its folder or id.
        options: further arguments of ``from_pretrained``. made_of: one of :data:`fusionkit.specs.LM_HEAD_SOURCES`.
        encoder: the loaded encoder, whose embeddings are taken; for its own head another one is loaded, and freed.

    Raises:
        EncoderError: no mask token, no LM head, one without weights in the checkpoint, or one of another form.
    """
    if tokenizer.mask_token_id is None:
        raise EncoderError(
            f"encoder {reference!r} has no mask token",
            expected="a tokenizer with a mask token",
            received=type(tokenizer).__name__,
            remedy=REMEDY,
        )
    if tokenizer.mask_token_id >= (known := len(encoder.get_input_embeddings().weight)):
        raise EncoderError(
            f"encoder {reference!r} has no embedding for its mask token",
            expected=f"a number below {known:,}",
            received=f"{tokenizer.mask_token} with number {tokenizer.mask_token_id:,}",
            remedy="save the model after model.resize_token_embeddings(len(tokenizer))",
        )
    head = _own_head(reference, place, options) if made_of == OWN else _embeddings_head(reference, encoder)
    special = np.unique(np.array(tokenizer.all_special_ids, dtype=np.int64))
    every = np.unique(np.array([i for i in tokenizer.get_vocab().values() if i < head.vocabulary], dtype=np.int64))
    return MaskedLm(head, int(tokenizer.mask_token_id), special, np.setdiff1d(every, special), made_of)


def _embeddings_head(reference: str, encoder: Any) -> LmHead:
    table, hidden = encoder.get_input_embeddings().weight, encoder.config.hidden_size
    if table.shape[1] != hidden:
        raise EncoderError(
            f"the embeddings of encoder {reference!r} make no LM head",
            expected=f"embeddings as wide as the states, {hidden}",
            received=f"width {table.shape[1]}",
            remedy=f"choose --lm-head {OWN}",
        )
    return head_of_embeddings(table, float(getattr(encoder.config, "layer_norm_eps", 1e-12)))


def _own_head(reference: str, place: str, options: dict[str, Any]) -> LmHead:
    with loading_errors(reference):
        config = transformers.AutoConfig.from_pretrained(place, **options)
        if type(config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING and not hasattr(config, "auto_map"):
            raise _no_head(reference, f"{type(config).__name__}, which transformers has no masked LM for")
        model, report = transformers.AutoModelForMaskedLM.from_pretrained(
            place, **options, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
    if missing := _missing(model, report["missing_keys"]):
        raise _no_head(reference, f"a checkpoint without {missing[0]}" + (" …" if len(missing) > 1 else ""))
    return _head_of(reference, model.eval().requires_grad_(False))


def _missing(model: Any, missing_keys: set[str]) -> list[str]:
    """The weights outside the encoder that the checkpoint lacks under all of their names; tied weights have several."""
    names: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    own = {id(weight) for weight in model.base_model.parameters()}
    return [of[0] for key, of in names.items() if key not in own and all(name in missing_keys for name in of)]


def _head_of(reference: str, model: Any) -> LmHead:
    inside = {id(module) for module in model.base_model.modules()}
    beside = [module for module in model.modules() if id(module) not in inside]
    decoder = model.get_output_embeddings()
    maps = [module for module in beside if isinstance(module, nn.Linear) and module is not decoder]
    norms = [module for module in beside if isinstance(module, nn.LayerNorm)]
    if not isinstance(decoder, nn.Linear) or len(maps) != 1 or len(norms) != 1:
        raise _other_form(reference, model, f"{len(maps)} linear maps and {len(norms)} layer norms before the decoder")
    weights = {
        f"{name}.{kind}": _copy(getattr(module, kind), size)
        for name, module, size in (
            ("dense", maps[0], maps[0].out_features),
            ("layer_norm", norms[0], maps[0].out_features),
            ("decoder", decoder, decoder.out_features),
        )
        for kind in ("weight", "bias")
    }
    try:
        states, wanted = _trial(model)
        heads = [LmHead(weights, activation, float(norms[0].eps)) for activation in ACTIVATIONS]
        found = [lm_scores(states, head.weights, head.activation, head.layer_norm_eps) for head in heads]
        errors = [float((scores - wanted).abs().max() / wanted.abs().max()) for scores in found]
        if min(errors) <= TOLERANCE:
            return heads[errors.index(min(errors))]
    except Exception as error:  # the model's own code; weights whose shapes do not fit one another
        raise _other_form(reference, model, first_line(error, kind=True)) from error
    raise _other_form(reference, model, "other scores than the model's own")


def _copy(weight: Tensor | None, size: int) -> Tensor:
    """A copy, so that the model can be freed; zeros for a bias that the module lacks."""
    return torch.zeros(size) if weight is None else weight.detach().clone()


def _trial(model: Any) -> tuple[Tensor, Tensor]:
    """The last layer's states ``[sub-tokens, d]`` and the model's scores ``[sub-tokens, V]`` for a few sub-tokens."""
    ids = torch.arange(16).view(2, 8) % model.config.vocab_size
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    return output.hidden_states[-1].flatten(0, 1), output.logits.flatten(0, 1)


def _no_head(reference: str, received: str) -> EncoderError:
    return EncoderError(
        f"encoder {reference!r} has no LM head",
        expected="a checkpoint with the weights of its masked-LM head",
        received=received,
        remedy=OR_EMBEDDINGS,
    )


def _other_form(reference: str, model: Any, received: str) -> EncoderError:
    return EncoderError(
        f"the LM head of encoder {reference!r} ({type(model).__name__}) is of an unknown form",
        expected="a linear map, an activation, a layer norm and a decoder, which give the model's own scores",
        received=received,
        remedy=REMEDY,
    )
