"""The settings of an encoder's configuration that its numbers depend on and its weights do not show."""

from __future__ import annotations

import json
from typing import Any

from fusionkit.errors import StoppedError

# Settings that no number depends on, or that names and shapes of the weights show.
SHOWN = {
    "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path", "tokenizer_class", "use_cache",
    "output_hidden_states", "output_attentions", "return_dict", "gradient_checkpointing", "problem_type",
    "finetuning_task", "task_specific_params", "id2label", "label2id", "num_labels", "classifier_dropout",
    "initializer_range", "tie_word_embeddings", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id",
    "decoder_start_token_id", "vocab_size", "type_vocab_size", "max_position_embeddings", "n_positions",
    "hidden_size", "intermediate_size", "num_hidden_layers", "dim", "hidden_dim", "n_layers", "d_model", "d_ff",
    "num_layers", "num_decoder_layers", "n_embd", "n_inner", "n_layer", "embedding_size",
}  # fmt: skip
# A BERT's usual settings are left out wholly: digests of runs over such stores are on record.
USUAL_TYPE = "bert"


def unusual_settings(config: Any) -> dict[str, Any]:
    """The settings of a transformers configuration that are not its class's defaults, and the kind of model.

    Without them, an encoder whose configuration was edited, or the untrained weights of one with other heads, would
    pass for the same one: their weights can be equal.
    """
    try:
        usual = type(config)().to_dict()
    except StoppedError:
        raise
    except Exception:  # a class of the encoder's own code may have no defaults
        usual = {}
    values = config.to_dict()
    kind = values.pop("model_type", None)
    known = {name: value for name, value in values.items() if name in usual or not usual}
    found = {name: value for name, value in _kept(known).items() if value != _kept(usual.get(name))}
    # In the types that JSON gives back, as it is compared with what a store recorded.
    told = found if kind == USUAL_TYPE else {"model_type": kind, **found}
    plain: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return plain


def _kept(value: Any) -> Any:
    """A setting without what :data:`SHOWN` lists, also inside the configurations of a model's parts."""
    return {k: _kept(v) for k, v in value.items() if k not in SHOWN} if isinstance(value, dict) else value
