"""Small random encoders of many architectures, the methods, and batches for them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from fusionkit.bundled import minilm_folder

# Any: its types describe what a checkpoint may hold, not what a test passes.
hf: Any = transformers
BATCH, LENGTH, LAYERS, HIDDEN, VOCABULARY = 3, 7, 3, 16, 60
SMALL: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 24,
    "vocab_size": VOCABULARY, "max_position_embeddings": 40,
}  # fmt: skip
DEBERTA = {"type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4,
           "norm_rel_ebd": "layer_norm", "share_att_key": True}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
T5 = {"d_model": HIDDEN, "d_kv": 8, "d_ff": 24, "num_layers": LAYERS, "num_heads": 2, "vocab_size": VOCABULARY}
GPT2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 2, "n_inner": 24, "vocab_size": VOCABULARY, "n_positions": 40}
DISTIL = {"dim": HIDDEN, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 24, "vocab_size": VOCABULARY}
MAKERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**SMALL)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**SMALL)),
    "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(**DISTIL)),
    "modernbert": lambda: hf.ModernBertModel(hf.ModernBertConfig(**SMALL, **SPECIAL, local_attention=4)),
    "deberta-v2": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**SMALL, **DEBERTA)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**SMALL)),
    "gpt2": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2)),
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(**SMALL, num_key_value_heads=1)),
    "t5": lambda: hf.T5EncoderModel(hf.T5Config(**T5)).encoder,
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**SMALL, embedding_size=8)),
    "minilm": lambda: hf.AutoModel.from_pretrained(minilm_folder()),
}
TYPED = ("bert", "minilm", "albert")  # their outputs depend on token types
# Every method once, then each of its options.
METHODS = (
    "frozen", "full", "top:2", "bitfit", "houlsby:4", "lora:2", "ia3", "prompt:3", "prefix:3", "diff-prune:target=0.02",
    "pals:6,heads=2", "low-rank:4",
)  # fmt: skip
OPTIONS = (
    "bitfit:embeddings=yes", "houlsby:4,share=layer", "houlsby:4,share=three,norms=yes", "houlsby:4,layers=-2:",
    "houlsby:4,layers=1:2", "pals:6,heads=2,share=no,encoder=frozen", "pals:6,heads=2,layers=-1:,biases=no",
    "low-rank:4,layers=2:4,encoder=frozen", "bitfit:layers=-1:", "lora:2,layers=-2:",
)  # fmt: skip
ONE, NO_BIAS, OWN_ATTENTION = "one layer that runs", "no bias", "0 of them"
BIASES = ("bitfit", "bitfit:embeddings=yes", "bitfit:layers=-1:")
# Methods that an encoder cannot take, with words of the reason.
REFUSED = {
    **{("albert", name): ONE for name in (*METHODS, *OPTIONS) if name.startswith("top") or "layers=" in name},
    ("albert", "prefix:3"): "1 of them",
    **{(kind, name): NO_BIAS for kind in ("modernbert", "llama", "t5") for name in BIASES},
    **{(kind, "prefix:3"): OWN_ATTENTION for kind in ("deberta-v2", "mpnet")},
}


@cache
def _made(kind: str) -> Any:
    torch.manual_seed(0)
    model = MAKERS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start constant, which would hide mistakes
            parameter += 0.02 * torch.randn_like(parameter)
    return model.eval().requires_grad_(False)


@pytest.fixture
def encoder() -> Callable[[str], Any]:
    """A fresh copy of an encoder by its architecture, frozen and in evaluation mode."""

    def make(kind: str) -> Any:
        made = copy.deepcopy(_made(kind))
        torch.manual_seed(5)  # for the parts that a method adds
        return made

    return make


@pytest.fixture
def batch() -> Callable[..., dict[str, Tensor]]:
    """Inputs of three sequences; the last two are padded by two and by four."""

    def make(kind: str, padding: int = 0) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(1)
        real = torch.tensor([LENGTH, LENGTH - 2, LENGTH - 4])
        mask = (torch.arange(LENGTH + padding) < real[:, None]).long()  # [batch, length]
        ids = torch.randint(5, VOCABULARY, (BATCH, LENGTH), generator=draw)
        ids = torch.nn.functional.pad(ids, (0, padding), value=1) * mask + (1 - mask)  # 1 is RoBERTa's padding
        inputs = {"input_ids": ids, "attention_mask": mask}
        if kind in TYPED:
            inputs["token_type_ids"] = (torch.arange(LENGTH + padding) > 2).long() * mask
        return inputs

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests every accepted pair of architecture and method, or, in ``refused``, the others with their reasons."""
    if {"kind", "name"} <= set(metafunc.fixturenames):
        pairs = [pair for pair in itertools.product(MAKERS, (*METHODS, *OPTIONS)) if pair not in REFUSED]
        metafunc.parametrize(("kind", "name"), [pytest.param(*pair, marks=pytest.mark.product) for pair in pairs])
    if "refused" in metafunc.fixturenames:
        metafunc.parametrize("refused", [(*pair, reason) for pair, reason in REFUSED.items()], ids="-".join)
