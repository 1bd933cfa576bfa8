"""Each method against its formula, written again over a plain BERT, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, pad

from fusionkit.methods import apply, parse_method
from fusionkit.methods.attached import Attached

Weights = dict[str, Tensor]
Encoder = Callable[[str], Any]
Batch = Callable[..., dict[str, Tensor]]
HEADS, EPSILON = 2, 1e-12


def same(h: Tensor, *_: Any) -> Tensor:
    return h


def split(x: Tensor, heads: int) -> Tensor:
    """``[batch, length, heads · width]`` → ``[batch, heads, length, width]``."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class PlainBert:
    """BERT as its paper has it; what a method changes is given as functions of a layer, 0 … L - 1."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.depth = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
        self.after_attention: Callable[[Tensor, int], Tensor] = same
        self.after_feed_forward: Callable[[Tensor, int], Tensor] = same
        self.beside: Callable[[Tensor, int, Tensor], Tensor] = lambda h, layer, mask: torch.zeros_like(h)
        self.prefix: Callable[[int], tuple[Tensor, Tensor]] | None = None  # keys, values [heads, P, width]
        self.added: dict[str, Callable[[Tensor, int], Tensor]] = {}  # to a linear map's output, of its input
        self.scaled: dict[str, Callable[[Tensor, int], Tensor]] = {}  # a linear map's output, or an inner unit
        self.prompt: Tensor | None = None

    def linear(self, x: Tensor, layer: int, name: str) -> Tensor:
        at = f"encoder.layer.{layer}.{name}"
        out = x @ self.weights[f"{at}.weight"].T + self.weights[f"{at}.bias"]
        short = name.rpartition(".")[2]
        if short in self.added:
            out = out + self.added[short](x, layer)
        return self.scaled[short](out, layer) if short in self.scaled else out

    def norm(self, x: Tensor, at: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], self.weights[f"{at}.weight"], self.weights[f"{at}.bias"], EPSILON)

    def attend(self, x: Tensor, layer: int, mask: Tensor) -> Tensor:
        names = ("query", "key", "value")
        q, k, v = (
            split(self.linear(x, layer, f"attention.self.{name}"), HEADS) for name in names
        )  # [batch, heads, length, width]
        if self.prefix is not None:
            keys, values = self.prefix(layer)
            k = torch.cat([keys.expand(len(x), -1, -1, -1), k], 2)
            v = torch.cat([values.expand(len(x), -1, -1, -1), v], 2)
            mask = pad(mask, (keys.shape[1], 0), value=1)
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # [batch, heads, length, keys]
        weights = scores.masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)

    def __call__(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        e, mask, types = "embeddings", inputs["attention_mask"], inputs["token_type_ids"]
        x = self.weights[f"{e}.word_embeddings.weight"][inputs["input_ids"]]
        if self.prompt is not None:
            x = torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)
            mask, types = (pad(each, (len(self.prompt), 0), value=n) for each, n in ((mask, 1), (types, 0)))
        x = x + self.weights[f"{e}.token_type_embeddings.weight"][types]
        x = x + self.weights[f"{e}.position_embeddings.weight"][: x.shape[1]]
        states = [self.norm(x, f"{e}.LayerNorm")]
        for layer in range(self.depth):
            at, h = f"encoder.layer.{layer}", states[-1]
            out = self.linear(self.attend(h, layer, mask), layer, "attention.output.dense")
            a = self.norm(h + self.after_attention(out, layer), f"{at}.attention.output.LayerNorm")
            inner = gelu(self.linear(a, layer, "intermediate.dense"))
            if "inner" in self.scaled:
                inner = self.scaled["inner"](inner, layer)
            out = self.after_feed_forward(self.linear(inner, layer, "output.dense"), layer)
            states.append(self.norm(a + out + self.beside(h, layer, mask), f"{at}.output.LayerNorm"))
        cut = 0 if self.prompt is None else len(self.prompt)
        return [state[:, cut:] for state in states]


Bert = Callable[[str], tuple[PlainBert, Weights, Callable[[], None]]]


@pytest.fixture
def bert(encoder: Encoder, batch: Batch) -> Bert:
    """Of a method: the plain BERT, the method's weights, and a check that both give the same states."""

    def make(method: str) -> tuple[PlainBert, Weights, Callable[[], None]]:
        model = encoder("bert")
        plain = PlainBert(model.state_dict())
        attached = apply(model, parse_method(method))
        draw = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for parameter in attached.trainable.values():
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)

        def check() -> None:
            inputs = batch("bert")
            real = inputs["attention_mask"].bool()
            with torch.no_grad():
                found = model(**inputs, output_hidden_states=True).hidden_states
            expected = plain(inputs)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a[real], b[real], rtol=1e-4, atol=1e-5)

        return plain, attached.delta(), check

    return make


def adapter(weights: Weights, at: str) -> Callable[[Tensor], Tensor]:
    down, up = ((weights[f"{at}.{name}.weight"], weights[f"{at}.{name}.bias"]) for name in ("down", "up"))
    return lambda h: h + gelu(h @ down[0].T + down[1]) @ up[0].T + up[1]


def test_the_plain_bert_is_bert(bert: Bert) -> None:
    plain, _, check = bert("frozen")
    check()
    plain.after_attention = lambda h, layer: 1.01 * h
    with pytest.raises(AssertionError, match="not close"):
        check()


# Which adapter stands behind attention and behind the feed-forward network of layers 0, 1, 2; None is none.
SHARED: dict[str, list[tuple[int | None, int | None]]] = {
    "houlsby:4": [(0, 1), (2, 3), (4, 5)],
    "houlsby:4,share=layer": [(0, 0), (1, 1), (2, 2)],
    "houlsby:4,share=three": [(0, 0), (0, 0), (0, 0)],
    "houlsby:4,layers=2:": [(None, None), (0, 1), (2, 3)],
    "houlsby:4,share=layer,layers=1:3": [(0, 0), (1, 1), (None, None)],
    "houlsby:4,layers=-1:": [(None, None), (None, None), (0, 1)],
}


@pytest.mark.parametrize("method", SHARED)
def test_adapters_and_their_sharings(bert: Bert, method: str) -> None:
    plain, weights, check = bert(method)

    def at(place: int) -> Callable[[Tensor, int], Tensor]:
        def through(h: Tensor, layer: int) -> Tensor:
            number = SHARED[method][layer][place]
            return h if number is None else adapter(weights, f"method_parts.{number}")(h)

        return through

    plain.after_attention, plain.after_feed_forward = at(0), at(1)
    check()
    assert len({n for pair in SHARED[method] for n in pair if n is not None}) == len(weights) / 4


def test_an_adapter_for_three_layers_begins_again_with_the_fourth() -> None:
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=7, num_attention_heads=2, intermediate_size=12, vocab_size=9
    )
    attached = apply(transformers.BertModel(config), parse_method("houlsby:2,share=three"))
    calls: list[int] = []
    for number, part in enumerate(attached.parts.children()):  # type: ignore[union-attr]
        part.register_forward_hook(lambda *_, number=number: calls.append(number))
    attached.model(torch.tensor([[1, 2]]))
    assert calls == [0] * 6 + [1] * 6 + [2] * 2


def test_adapters_are_those_of_the_library_adapters() -> None:
    """Both positions of its ``DoubleSeqBnConfig``, with GELU and the width set (made by adapters_oracle.py)."""
    stored = load_file(Path(__file__).with_name("adapters_bert.safetensors"))
    weights = {name.removeprefix("encoder."): t for name, t in stored.items() if name.startswith("encoder.")}
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12,
    )  # fmt: skip
    model: Any = transformers.BertModel(config, add_pooling_layer=False)
    model.eval()
    model.load_state_dict(weights)
    attached = apply(model, parse_method("houlsby:4"))
    delta: Weights = {}
    for number in range(6):
        theirs = f"adapter.{number // 2}.{('attention', 'feed_forward')[number % 2]}"
        delta |= {
            f"method_parts.{number}.{name}": stored[f"{theirs}.{name}"]
            for name in ("down.weight", "down.bias", "up.weight", "up.bias")
        }
    attached.load_delta(delta)
    with torch.no_grad():
        found = model(stored["input_ids"], attention_mask=stored["attention_mask"], output_hidden_states=True)
    for number, states in enumerate(found.hidden_states):
        torch.testing.assert_close(states, stored[f"states.{number}"], rtol=1e-5, atol=1e-6)
    attached.detach()
    plain = model(stored["input_ids"], attention_mask=stored["attention_mask"])
    assert not torch.allclose(plain.last_hidden_state, stored["states.3"], atol=0.1)


@pytest.mark.parametrize("method", ["pals:6,heads=2,encoder=frozen", "pals:6,heads=3,share=no,encoder=frozen"])
def test_projected_attention_layers(bert: Bert, method: str) -> None:
    plain, weights, check = bert(method)
    heads = parse_method(method).options["heads"]

    def beside(h: Tensor, layer: int, mask: Tensor) -> Tensor:
        def linear(x: Tensor, name: str) -> Tensor:
            return x @ weights[f"method_parts.{name}.weight"].T + weights[f"method_parts.{name}.bias"]

        own = layer if "share=no" in method else 0
        x = linear(h, f"encode.{own}")
        names = ("query", "key", "value")
        q, k, v = (split(linear(x, f"attention.{layer}.{n}"), heads) for n in names)
        scores = (q @ k.mT / math.sqrt(6 / heads)).masked_fill(mask[:, None, None] == 0, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return gelu(linear(mixed, f"decode.{own}"))

    plain.beside = beside
    check()


def test_low_rank_layers(bert: Bert) -> None:
    plain, weights, check = bert("low-rank:4,layers=-2:,encoder=frozen")

    def beside(h: Tensor, layer: int, mask: Tensor) -> Tensor:
        if layer == 0:
            return torch.zeros_like(h)
        encode, decode = (
            (weights[f"method_parts.{name}.{layer - 1}.weight"], weights[f"method_parts.{name}.{layer - 1}.bias"])
            for name in ("encode", "decode")
        )
        return gelu(h @ encode[0].T + encode[1]) @ decode[0].T + decode[1]

    plain.beside = beside
    check()


def test_prefixes_stand_in_front_of_keys_and_values(bert: Bert) -> None:
    plain, weights, check = bert("prefix:3")
    plain.prefix = lambda layer: (weights[f"method_parts.{layer}.keys"], weights[f"method_parts.{layer}.values"])
    check()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_prefix_is_what_a_cache_of_keys_and_values_is(encoder: Encoder, kind: str) -> None:
    """Where the decoder takes one: with the positions that it has without."""
    from transformers import DynamicCache

    ids = torch.randint(5, 50, (2, 6), generator=torch.Generator().manual_seed(7))
    attached = apply(encoder(kind), parse_method("prefix:3"))
    with torch.no_grad():
        found = attached.model(ids, use_cache=False).last_hidden_state
        cache = DynamicCache()
        for layer, part in enumerate(attached.parts.children()):  # type: ignore[union-attr]
            cache.update(part.keys.expand(2, -1, -1, -1), part.values.expand(2, -1, -1, -1), layer)
        positions = torch.arange(6)[None]
        expected = encoder(kind)(ids, past_key_values=cache, position_ids=positions).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_prompts_stand_in_front_of_the_first_token(bert: Bert) -> None:
    plain, weights, check = bert("prompt:3")
    plain.prompt = weights["method_parts.vectors"]
    check()


def test_a_prompt_starts_as_words(encoder: Encoder) -> None:
    attached = apply(encoder("bert"), parse_method("prompt:3"))
    words = attached.model.get_input_embeddings().weight
    vectors = attached.trainable["method_parts.vectors"]
    assert attached.positions_added == 3
    assert all((words == vector).all(-1).any() for vector in vectors)


def test_lora_adds_a_map_of_low_rank_to_query_and_value(bert: Bert) -> None:
    plain, weights, check = bert("lora:2,alpha=6")

    def added(name: str) -> Callable[[Tensor, int], Tensor]:
        def of(x: Tensor, layer: int) -> Tensor:
            at = f"encoder.layer.{layer}.attention.self.{name}"
            return 3 * (x @ weights[f"{at}.lora_A.default.weight"].T @ weights[f"{at}.lora_B.default.weight"].T)

        return of

    plain.added = {name: added(name) for name in ("query", "value")}
    check()


def test_ia3_scales_keys_values_and_inner_units(bert: Bert) -> None:
    plain, weights, check = bert("ia3")

    def scaled(name: str) -> Callable[[Tensor, int], Tensor]:
        return lambda x, layer: x * weights[f"encoder.layer.{layer}.{name}.ia3_l.default"].flatten()

    plain.scaled = {
        "key": scaled("attention.self.key"), "value": scaled("attention.self.value"), "inner": scaled("output.dense")
    }  # fmt: skip
    check()


def test_bitfit_and_top_are_named_parameters_of_bert(encoder: Encoder) -> None:
    every = [name for name, _ in encoder("bert").named_parameters() if not name.startswith("pooler")]
    wanted: dict[str, list[str]] = {
        "full": every,
        "bitfit": [name for name in every if name.startswith("encoder") and name.endswith("bias")],
        "bitfit:embeddings=yes": [name for name in every if name.endswith("bias")],
        "top:1": [name for name in every if name.startswith("encoder.layer.2.")],
        "frozen": [],
    }
    for method, names in wanted.items():
        attached: Attached = apply(encoder("bert"), parse_method(method))
        assert list(attached.trainable) == names


def test_the_norm_behind_the_last_layer_is_part_of_the_top(encoder: Encoder) -> None:
    last = {
        "gpt2": "ln_f.weight",
        "llama": "norm.weight",
        "t5": "final_layer_norm.weight",
        "modernbert": "final_norm.weight",
    }
    for kind, name in last.items():
        assert name in apply(encoder(kind), parse_method("top:1")).trainable
