"""Tiny random encoders of many architectures, saved as ``save_pretrained`` writes them.

Each keeps the model and the tokenizer that were saved, so a test can compute the expected result
without loading anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

# Any: its types describe what a checkpoint may hold, not what a test passes.
hf: Any = transformers
CORPUS = [
    "the quick brown foxes are jumping over a lazy dog",
    "an unbelievable amount of rain fell on Zürich, again",
    "nobody had seen the harbour so quiet in years",
] * 3
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
BART: dict[str, Any] = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (
    ("layers", 2), ("ffn_dim", 32), ("attention_heads", 2))}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A saved encoder, and the same encoder as it was before saving."""

    folder: Path
    model: Any
    tokenizer: tokenizers.Tokenizer
    has_types: bool

    def states(self, text: str, pair: str | None = None) -> torch.Tensor:
        """``[layers, tokens, hidden]`` of one unpadded text, by the model itself."""
        encoding = self.tokenizer.encode(text, pair)
        inputs = {"input_ids": torch.tensor([encoding.ids])}
        if self.has_types:
            inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
        with torch.no_grad():
            hidden = self.model(**inputs, output_hidden_states=True).hidden_states
        return torch.stack([layer[0] for layer in hidden])


def _train(tokenizer: tokenizers.Tokenizer, trainer: Any) -> tokenizers.Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> tokenizers.Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    _train(made, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def byte_level(special: list[str]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    return _train(
        made, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=letters, show_progress=False)
    )


def roberta_tokenizer() -> tokenizers.Tokenizer:
    made = byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return made


def unigram(special: list[str], unknown: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unknown, show_progress=False)
    return _train(made, trainer)


def bert() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = wordpiece()
    config = hf.BertConfig(vocab_size=raw.get_vocab_size(), max_position_embeddings=64, **SMALL)
    return hf.BertModel(config), hf.BertTokenizerFast(tokenizer_object=raw), raw


def distilbert() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = wordpiece()
    config = hf.DistilBertConfig(
        vocab_size=raw.get_vocab_size(), max_position_embeddings=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32
    )
    return hf.DistilBertModel(config), hf.DistilBertTokenizerFast(tokenizer_object=raw), raw


def roberta() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = roberta_tokenizer()
    config = hf.RobertaConfig(vocab_size=raw.get_vocab_size(), max_position_embeddings=66, type_vocab_size=1, **SMALL)
    return hf.RobertaModel(config), hf.RobertaTokenizerFast(tokenizer_object=raw), raw


def deberta() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"], "[UNK]")
    raw.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    config = hf.DebertaV2Config(
        vocab_size=raw.get_vocab_size(), max_position_embeddings=64, type_vocab_size=0, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_biased_input=False, **SMALL,
    )  # fmt: skip
    return hf.DebertaV2Model(config), hf.DebertaV2TokenizerFast(tokenizer_object=raw), raw


def modernbert() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = wordpiece()
    config = hf.ModernBertConfig(
        vocab_size=raw.get_vocab_size(), max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        cls_token_id=2, sep_token_id=3, local_attention=4, **SMALL,
    )  # fmt: skip
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    return hf.ModernBertModel(config), tokenizer, raw


def gpt2() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = byte_level(["<|endoftext|>"])
    config = hf.GPT2Config(
        vocab_size=raw.get_vocab_size(), n_positions=64, n_embd=16, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return hf.GPT2Model(config), hf.GPT2TokenizerFast(tokenizer_object=raw), raw


def t5(half: bool = False) -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = unigram(["<pad>", "</s>", "<unk>"], "<unk>")
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    config = hf.T5Config(
        vocab_size=raw.get_vocab_size(),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = hf.T5EncoderModel(config) if half else hf.T5Model(config)
    return model, hf.T5TokenizerFast(tokenizer_object=raw, extra_ids=0), raw


def bart() -> tuple[Any, Any, tokenizers.Tokenizer]:
    raw = roberta_tokenizer()
    config = hf.BartConfig(vocab_size=raw.get_vocab_size(), d_model=16, max_position_embeddings=48, **BART)
    return hf.BartModel(config), hf.RobertaTokenizerFast(tokenizer_object=raw), raw


MAKERS: dict[str, Callable[[], tuple[Any, Any, tokenizers.Tokenizer]]] = {
    "bert": bert, "distilbert": distilbert, "roberta": roberta, "deberta-v2": deberta, "modernbert": modernbert,
    "gpt2": gpt2, "t5": t5, "t5-encoder": lambda: t5(half=True), "bart": bart,
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    """A tiny encoder by name, made and saved once."""
    made: dict[str, Tiny] = {}

    def get(name: str) -> Tiny:
        if name not in made:
            torch.manual_seed(0)
            model, tokenizer, raw = MAKERS[name]()
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            model.eval()
            whole = model.get_encoder() if model.config.is_encoder_decoder else model
            made[name] = Tiny(folder, whole, raw, name in ("bert", "deberta-v2"))
        return made[name]

    return get


@pytest.fixture
def architectures() -> list[str]:
    """The names that the fixture ``tiny`` knows."""
    return list(MAKERS)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what ``HF_HUB_OFFLINE=1`` sets; the library reads the variable only when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
