"""Methods that train through the encoder: one file a method, one table of them all.

    spec = parse_method("houlsby:64,share=layer")     # loads no transformers; str(spec) is its canonical spelling
    spec.entry                                        # its row: summary, paper, rates, merges, starts_as_encoder …
    attached = apply(encoder.model, spec)             # the model is changed in place
    attached.train()                                  # before each step: dropout from attached.lowest_layer up
    states = encoder.model(input_ids=…, attention_mask=…, token_type_ids=…, output_hidden_states=True).hidden_states
    loss = task_loss(states) + (attached.penalty() if attached.penalty else 0)
    attached.trainable                                # name → Parameter: no others have requires_grad
    attached.rates                                    # name → rate, for those that do not take the run's rate
    attached.begin_step(done, steps)                  # where it is not None: phases; call it before each step
    kept = attached.delta()                           # name → CPU tensor: all that was trained, for safetensors
    apply(fresh, spec).load_delta(kept)               # the same output
    attached.merge()                                  # where the row says so: a plain model of transformers

:class:`~fusionkit.methods.attached.Attached` has the rest: ``lowest_layer``, ``positions_added``, ``count``,
``detach``. What a method adds to a model is registered in it as ``model.method_parts``, so that ``model.to`` and
``named_parameters`` see it. Never ``deepcopy`` a model with a method: its hooks would call the original's parts. Load
the encoder again, apply the method and load the delta. ``inference_mode`` tensors cannot train: load a model that is to
be trained outside of it. Parts of a method are drawn from torch's global generator: seed it before ``apply``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily
from fusionkit.methods.table import (
    METHODS,
    REGISTRY,
    Method,
    MethodEntry,
    MethodSpec,
    method_class,
    method_named,
    parse_method,
)

if TYPE_CHECKING:
    from fusionkit.methods.attach import apply

__all__ = [
    "METHODS",
    "REGISTRY",
    "Method",
    "MethodEntry",
    "MethodSpec",
    "apply",
    "method_class",
    "method_named",
    "parse_method",
]

__getattr__ = lazily(__name__, {"fusionkit.methods.attach": ("apply",)})  # it loads torch
