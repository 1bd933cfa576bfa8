"""The layers above layer k over the states of layer k: of every architecture the states of a whole pass, to the bit."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils import checkpoint

from fusionkit.encoder import Encoder
from fusionkit.errors import UsageError
from fusionkit.methods import apply, parse_method
from fusionkit.methods.attached import Attached
from fusionkit.tuning.upper_layers import UpperLayers

hf: Any = transformers
Make = Callable[[str], Any]
Batch = Callable[..., dict[str, Tensor]]
SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 60,
    "max_position_embeddings": 40,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
# Beside those that every method is tested with; windows are shorter than the sequences.
MORE: dict[str, Callable[[], Any]] = {
    "electra": lambda: hf.ElectraModel(hf.ElectraConfig(**SMALL, embedding_size=8)),
    "roformer": lambda: hf.RoFormerModel(hf.RoFormerConfig(**SMALL)),
    "qwen2": lambda: hf.Qwen2Model(
        hf.Qwen2Config(**SMALL, num_key_value_heads=1, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**SMALL, **GROUPED)),
    "gemma3": lambda: hf.Gemma3TextModel(
        hf.Gemma3TextConfig(
            **SMALL, **GROUPED, sliding_window=4, layer_types=["sliding_attention"] * 2 + ["full_attention"]
        )
    ),
}
GATE = ("bert", "llama", "t5")
REST = ("roberta", "distilbert", "modernbert", "deberta-v2", "mpnet", "gpt2", "minilm", *MORE)
XLNET = {"vocab_size": 60, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24}
MORE["xlnet"] = lambda: hf.XLNetModel(hf.XLNetConfig(**XLNET))  # its states lie in another order


@pytest.fixture
def made(encoder: Make) -> Callable[[str, str], tuple[Encoder, Attached]]:
    """An encoder of an architecture with a method."""

    def make(kind: str, method: str) -> tuple[Encoder, Attached]:
        torch.manual_seed(0)
        model = (MORE[kind]() if kind in MORE else encoder(kind)).eval().requires_grad_(False)
        attached = apply(model, parse_method(method))
        found = Encoder(
            name=kind,
            model=model,
            tokenizer=SimpleNamespace(pad_token_id=1),
            layers=attached.structure.depth + 1,
            hidden=attached.structure.hidden,
            max_length=30,
            parameters=0,
            sentence_rows="mean",
            identity={},
            device=torch.device("cpu"),
            accepts=frozenset(inspect.signature(model.forward).parameters),
        )
        return found, attached

    return make


def gradients(attached: Attached, states: tuple[Tensor, ...], start: int, real: Tensor) -> dict[str, Tensor]:
    loss = sum((layer[real] * torch.linspace(-1, 1, layer.shape[-1])).sum() for layer in states[start + 1 :])
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: weights.grad for name, weights in attached.trainable.items() if weights.grad is not None}
    for weights in attached.trainable.values():
        weights.grad = None
    return found


@pytest.mark.parametrize("kind", [*GATE, *(pytest.param(kind, marks=pytest.mark.soak("products")) for kind in REST)])
def test_from_a_layer_is_from_the_text_for_every_layer(
    made: Callable[[str, str], tuple[Encoder, Attached]], batch: Batch, kind: str
) -> None:
    depth = made(kind, "frozen")[1].structure.depth
    inputs = batch(kind)
    mask = inputs["attention_mask"]
    given = inputs["input_ids"], mask, inputs.get("token_type_ids", torch.zeros_like(mask))
    for start in range(1, depth):
        for method in (f"top:{depth - start}", f"houlsby:4,layers={start - depth}:"):
            encoder, attached = made(kind, method)
            upper = UpperLayers(encoder, attached, start)
            assert attached.lowest_layer == start + 1
            checkpoints = encoder.model.supports_gradient_checkpointing
            for training, checkpointing in ((False, False), (True, False), *([(True, True)] if checkpoints else [])):
                if checkpointing:
                    attached.checkpoint()
                attached.train(training)
                told: list[tuple[tuple[Tensor, ...], dict[str, Tensor]]] = []
                for known in (None, upper):
                    torch.manual_seed(4)  # of dropout
                    states = encoder.states(*given) if known is None else upper.states(told[0][0][start], *given)
                    states = tuple(layer.detach() if at == start else layer for at, layer in enumerate(states))
                    told.append((states, gradients(attached, states, start, mask.bool())))
                (whole, wanted), (short, found) = told
                for layer in range(start, depth + 1):
                    torch.testing.assert_close(
                        short[layer][mask.bool()], whole[layer][mask.bool()], rtol=0, atol=0, msg=f"{method}, {layer}"
                    )
                torch.testing.assert_close(found, wanted, rtol=0, atol=0)
                assert wanted.keys() == attached.trainable.keys()


def test_a_layer_that_is_called_again_in_the_backward_pass_gets_the_same_states(
    made: Callable[[str, str], tuple[Encoder, Attached]], batch: Batch
) -> None:
    """Older versions of transformers checkpoint a layer's call, not its forward: hooks run again too."""
    encoder, attached = made("bert", "top:1")
    upper = UpperLayers(encoder, attached, 2)
    computed_twice: Any = checkpoint.checkpoint

    def call(module: Any, *given: Any, **named: Any) -> Any:
        return computed_twice(partial(nn.Module.__call__, module, **named), *given, use_reentrant=False)

    layer: Any = attached.structure.layers[2]
    layer.__class__ = type("Older", (type(layer),), {"__call__": call})
    inputs = batch("bert")
    given = inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"]
    whole = encoder.states(*given)
    short = upper.states(whole[2].detach(), *given)
    wanted, found = (gradients(attached, states, 2, inputs["attention_mask"].bool()) for states in (whole, short))
    assert wanted.keys() == attached.trainable.keys()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_an_encoder_that_cannot_is_refused_and_stays_as_it_was(
    made: Callable[[str, str], tuple[Encoder, Attached]], batch: Batch
) -> None:
    for kind, depth in (("bert", 3), ("albert", 3)):
        encoder, attached = made(kind, "houlsby:4")
        with pytest.raises(UsageError, match="no run of this method starts from layer 1"):
            UpperLayers(encoder, attached, 1)
        assert attached.structure.depth == depth
    with pytest.raises(UsageError, match="--from-layer cannot be used with AlbertModel"):
        UpperLayers(encoder, dataclasses.replace(attached, lowest_layer=3), 1)
    encoder, attached = made("xlnet", "top:1")
    with pytest.raises(UsageError, match="XLNetModel cannot start from layer 2"):
        UpperLayers(encoder, attached, 2)
    encoder, attached = made("t5", "top:1")
    before = encoder.states(*(batch("t5")[name] for name in ("input_ids", "attention_mask", "attention_mask")))
    stray = torch.nn.Parameter(torch.zeros(16))

    def meddle(module: Any, given: Any, output: Any) -> Any:  # what is below layer k has a part in what is above
        stray.data = output[0].mean((0, 1)).detach()
        return output

    def moved(module: Any, given: Any, output: Any) -> Any:
        return output[0] + stray, *output[1:]

    layers = attached.structure.layers
    hooks = [layers[0].register_forward_hook(meddle), layers[2].register_forward_hook(moved)]
    with pytest.raises(UsageError, match="T5Stack cannot start from layer 2") as caught:
        UpperLayers(encoder, attached, 2)
    assert "states of layer 3 that differ by" in str(caught.value.received)
    for hook in hooks:
        hook.remove()
    after = encoder.states(*(batch("t5")[name] for name in ("input_ids", "attention_mask", "attention_mask")))
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not encoder.model.training
