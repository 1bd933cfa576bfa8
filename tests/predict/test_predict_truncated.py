"""Encoders without the layers that nobody reads: the same states, whatever the architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import fusionkit
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.encoder.truncate import truncated
from fusionkit.store import Store

hf: Any = transformers
SMALL: dict[str, Any] = {"vocab_size": 57, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
WIDE = {**SMALL, "intermediate_size": 32}
# The model, and how many of its 4 layers are kept where layer 2 is the highest read.
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "bert": (lambda: hf.BertModel(hf.BertConfig(**WIDE)), 2),
    "roberta": (lambda: hf.RobertaModel(hf.RobertaConfig(**WIDE)), 2),
    "distilbert": (lambda: hf.DistilBertModel(hf.DistilBertConfig(vocab_size=57, dim=16, n_layers=4, n_heads=2)), 2),
    # These normalise the last layer's output: layer 2 must not become the last.
    "gpt2": (lambda: hf.GPT2Model(hf.GPT2Config(vocab_size=57, n_embd=16, n_layer=4, n_head=2)), 3),
    "llama": (lambda: hf.LlamaModel(hf.LlamaConfig(**WIDE)), 3),
    # One layer used four times: there is no list to cut.
    "albert": (lambda: hf.AlbertModel(hf.AlbertConfig(**WIDE, embedding_size=8)), 4),
}


def states(encoder: Encoder) -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([[2, 9, 10, 11, 12, 3], [2, 13, 14, 3, 0, 0]])
    return encoder.forward(ids, (ids > 0).long(), torch.zeros_like(ids))


@pytest.fixture
def of_model(bert: Path, tmp_path: Path) -> Callable[[Any], Encoder]:
    """The encoder that a model saved beside the letters' tokenizer is loaded as."""

    def load(model: Any) -> Encoder:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))  # norms that do something
        model.save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name).write_bytes((bert / name).read_bytes())
        return load_encoder(str(tmp_path), device="cpu")

    return load


@pytest.mark.parametrize("name", MODELS)
def test_a_truncated_encoder_gives_the_same_states(name: str, of_model: Callable[[Any], Encoder]) -> None:
    torch.manual_seed(1)
    make, kept = MODELS[name]
    whole = of_model(make())
    assert whole.layers == 5
    parameters, wanted = whole.parameters, states(whole)
    cut = truncated(whole, 2)
    assert cut.layers == kept + 1
    assert (cut.parameters < parameters) == (kept < 4)
    found = states(cut)
    assert len(found) == kept + 1
    assert all(torch.equal(found[k], wanted[k]) for k in range(3))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_encoder_whose_last_layer_is_read_stays_whole(name: str, of_model: Callable[[Any], Encoder]) -> None:
    whole = of_model(MODELS[name][0]())
    wanted = states(whole)
    same = truncated(whole, 4)
    assert same is whole
    assert len(states(same)) == 5
    assert torch.equal(states(same)[4], wanted[4])


def test_embeddings_alone_keep_one_layer_since_none_gives_no_states(of_model: Callable[[Any], Encoder]) -> None:
    whole = of_model(MODELS["bert"][0]())
    wanted = states(whole)[0]
    cut = truncated(whole, 0)
    assert cut.layers == 2
    assert torch.equal(states(cut)[0], wanted)


def test_two_lists_of_as_many_modules_leave_the_encoder_whole(of_model: Callable[[Any], Encoder]) -> None:
    whole = of_model(MODELS["bert"][0]())
    whole.model.add_module("others", torch.nn.ModuleList(torch.nn.Identity() for _ in range(4)))
    assert truncated(whole, 1) is whole


def test_the_highest_layer_that_any_run_reads_is_kept(
    make_store: Callable[..., Store], fit_run: Callable[..., Path], source: Any
) -> None:
    store = make_store("mean")
    low, high = (fit_run(store, task="classification", fusions=[f"layer:{k}"]) for k in (1, 2))
    texts = source.splits["validation"].head()["tokens"].to_pylist()
    cut, both, whole = (
        fusionkit.load(low, device="cpu"),
        fusionkit.load(low, high, device="cpu"),
        fusionkit.load(low, fit_run(store, task="classification", fusions=["last"]), device="cpu"),
    )
    assert [each.encoder.layers for each in (cut, both, whole)] == [2, 3, 4]
    name = "label/layer:1"
    alone = [prediction["label"] for prediction in cut.predict(texts)]
    assert alone == [prediction[name] for prediction in both.predict(texts)]
    assert alone == [prediction[name] for prediction in whole.predict(texts)]
