"""The LM head out of a checkpoint: the model's own scores, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fusionkit.bundled import minilm_folder
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import EncoderError
from fusionkit.heads import LM_HEADS
from fusionkit.heads.lm_head import build_lm_head
from fusionkit.lm_head import ACTIVATIONS, LmHead, lm_scores

hf: Any = transformers
V = 57
COMMON = {"vocab_size": V, "max_position_embeddings": 64, "pad_token_id": 0}
USUAL = {**COMMON, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
# Of each the model, and the width of its decoder.
MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "bert": (lambda: hf.BertForMaskedLM(hf.BertConfig(**USUAL)), 16),
    "bert, relu": (lambda: hf.BertForMaskedLM(hf.BertConfig(**USUAL, hidden_act="relu")), 16),
    "roberta": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**USUAL)), 16),
    # Its head computes gelu, whatever the configuration says.
    "roberta, silu": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**USUAL, hidden_act="silu")), 16),
    "roberta, gelu_new": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**USUAL, hidden_act="gelu_new")), 16),
    "xlm-roberta": (lambda: hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**USUAL)), 16),
    "distilbert": (
        lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**COMMON, dim=16, n_layers=2, n_heads=2, hidden_dim=32)),
        16,
    ),
    "electra": (lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**USUAL, embedding_size=8)), 8),
    "albert": (lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**USUAL, embedding_size=8)), 8),
    "mpnet": (lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**USUAL)), 16),
    "modernbert": (
        lambda: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(**USUAL, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
        ),
        16,
    ),
}


@pytest.fixture
def place(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[Any], str]:
    """A folder with a model of random weights and BERT's tiny tokenizer."""
    tokenizer = hf.AutoTokenizer.from_pretrained(checkpoint("bert"))

    def save(model: Any) -> str:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" not in name.lower() or not name.endswith("weight"):
                    weight.normal_(0, 0.3)
        model.save_pretrained(tmp_path / "m")
        tokenizer.save_pretrained(tmp_path / "m")
        return str(tmp_path / "m")

    return save


@pytest.mark.parametrize("kind", list(MODELS))
def test_the_head_gives_the_model_s_own_scores(kind: str, place: Callable[[Any], str]) -> None:
    torch.manual_seed(1)
    make, width = MODELS[kind]
    folder = place(make())
    found = load_encoder(folder, device="cpu", lm_head="own").masked_lm
    assert found is not None
    head = found.head
    assert (head.vocabulary, *head.weights["dense.weight"].shape) == (V, width, 16)
    model = hf.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.randint(5, V, (3, 11))
    with torch.no_grad():
        wanted = model(ids, output_hidden_states=True)
    scores = lm_scores(wanted.hidden_states[-1], head.weights, head.activation, head.layer_norm_eps)
    torch.testing.assert_close(scores, wanted.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["roberta, silu", "roberta, gelu_new"])
def test_the_activation_is_the_one_that_is_computed(kind: str, place: Callable[[Any], str]) -> None:
    model = MODELS[kind][0]()
    found = load_encoder(place(model), device="cpu", lm_head="own").masked_lm
    assert found is not None
    assert found.head.activation == "gelu"


def test_the_encoder_is_the_same_with_its_head(checkpoint: Callable[[str], Path], encoder: Any) -> None:
    plain, whole = load_encoder(str(checkpoint("bert")), device="cpu"), encoder("bert")
    assert plain.masked_lm is None
    assert plain.identity == whole.identity
    assert plain.parameters == whole.parameters


def test_the_head_holds_nothing_of_the_model_in_memory(encoder: Callable[[str], Encoder]) -> None:
    found = encoder("roberta")
    assert found.masked_lm is not None
    held = {weight.untyped_storage().data_ptr() for weight in found.model.parameters()}
    for weight in found.masked_lm.head.weights.values():
        assert weight.untyped_storage().nbytes() == weight.nbytes
        assert weight.untyped_storage().data_ptr() not in held


def test_minilm_has_no_head_and_says_so() -> None:
    assert minilm_folder().is_dir()
    with pytest.raises(EncoderError, match="encoder 'minilm' has no LM head") as caught:
        load_encoder("minilm", device="cpu", lm_head="own")
    assert "without cls.predictions." in (caught.value.received or "")
    assert "masked language model" in (caught.value.remedy or "")


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a decoder": (
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64)),
        "has no LM head",
        "GPT2Config",
    ),
    "a discriminator": (
        lambda: hf.ElectraForPreTraining(hf.ElectraConfig(**USUAL)),
        "has no LM head",
        "without generator_",
    ),
    "another form": (
        lambda: hf.MobileBertForMaskedLM(hf.MobileBertConfig(**USUAL, embedding_size=8, intra_bottleneck_size=8)),
        "is of an unknown form",
        "linear maps",
    ),
}


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_has_no_such_head_is_refused(kind: str, place: Callable[[Any], str]) -> None:
    make, what, received = REFUSED[kind]
    with pytest.raises(EncoderError, match=what) as caught:
        load_encoder(place(make()), device="cpu", lm_head="own")
    assert received in (caught.value.received or "")


def test_an_encoder_without_a_mask_token_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    hf.AutoModelForMaskedLM.from_pretrained(checkpoint("bert")).save_pretrained(tmp_path)
    raw = hf.AutoTokenizer.from_pretrained(checkpoint("bert")).backend_tokenizer
    hf.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]").save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="has no mask token"):
        load_encoder(str(tmp_path), device="cpu", lm_head="own")


def test_a_mask_token_without_an_embedding_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    hf.AutoModelForMaskedLM.from_pretrained(checkpoint("bert")).save_pretrained(tmp_path)
    tokenizer = hf.AutoTokenizer.from_pretrained(checkpoint("bert"))
    tokenizer.add_special_tokens({"mask_token": "[HIDDEN]"})
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match="has no embedding for its mask token"):
        load_encoder(str(tmp_path), device="cpu", lm_head="embeddings")


def weights(d: int = 3, e: int = 2, v: int = 5) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"dense": (e, d), "layer_norm": (e,), "decoder": (v, e)}
    return {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()} | {
        f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()
    }


@pytest.mark.parametrize("name", LM_HEADS)
def test_a_frozen_head_learns_and_keeps_nothing_a_trained_one_all(name: str) -> None:
    given = LmHead(weights(), "gelu", 1e-5)
    head = build_lm_head(name, given, 0.0)
    states = torch.randn(4, 3, requires_grad=True)
    scores = head(states, torch.arange(5))
    torch.testing.assert_close(scores, lm_scores(states, given.weights, "gelu", 1e-5))
    loss: Any = head.loss(scores, torch.tensor([0, 1, 2, 3]), torch.arange(5))
    loss.backward()
    assert states.grad is not None
    assert states.grad.abs().sum() > 0
    trained = name == "lm-head-trained"
    assert sum(p.numel() for p in head.parameters()) == (6 + 2 + 2 + 2 + 10 + 5 if trained else 0)
    assert len(head.state_dict()) == (6 if trained else 0)
    assert all(p.grad is not None for p in head.parameters())


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_the_formula_written_out(activation: str) -> None:
    formulas: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "relu": lambda x: x * (x > 0),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
        "none": lambda x: x,
    }
    w = {name: weight.double() for name, weight in weights(e=6).items()}
    states = torch.randn(7, 3, dtype=torch.float64)
    t = formulas[activation](states @ w["dense.weight"].T + w["dense.bias"])
    t = (t - t.mean(1, keepdim=True)) / (t.var(1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    wanted = (t * w["layer_norm.weight"] + w["layer_norm.bias"]) @ w["decoder.weight"].T + w["decoder.bias"]
    torch.testing.assert_close(lm_scores(states, w, activation, 1e-3), wanted, rtol=1e-10, atol=1e-10)


def test_weights_that_do_not_fit_are_no_head() -> None:
    good = weights()
    LmHead(good, "gelu", 1e-5)
    for wrong in (
        {name: weight for name, weight in good.items() if name != "dense.bias"},
        {**good, "decoder.bias": torch.zeros(4)},
        {**good, "decoder.weight": torch.zeros(5, 3)},
    ):
        with pytest.raises(ValueError, match="no masked LM head"):
            LmHead(wrong, "gelu", 1e-5)
    with pytest.raises(ValueError, match="softsign"):
        LmHead(good, "softsign", 1e-5)


def test_embeddings_of_another_width_make_no_head(place: Callable[[Any], str]) -> None:
    with pytest.raises(EncoderError, match="make no LM head") as caught:
        load_encoder(place(MODELS["albert"][0]()), device="cpu", lm_head="embeddings")
    assert (caught.value.expected, caught.value.received) == ("embeddings as wide as the states, 16", "width 8")
