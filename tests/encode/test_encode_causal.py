"""Decoder-only encoders: their first token has seen nothing, so the last one stands for a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, trainers

from fusionkit.encode import encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import UsageError
from fusionkit.fit.sweep.fusion_choices import choose_pool
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec
from fusionkit.store import open_store
from fusionkit.tasks import TASKS

hf: Any = transformers  # its classes are typed by what a checkpoint may hold
TEXTS = ["the quick fox", "rain", "again the lazy dog is so quiet"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A tiny random Llama."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=raw.get_vocab_size() + 1, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("decoder")
    hf.LlamaModel(config).save_pretrained(folder)
    hf.PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(folder)
    return load_encoder(str(folder), device="cpu")


def test_the_last_token_stands_for_a_text(decoder: Encoder, tmp_path: Path) -> None:
    source = Source("texts", {"train": pa.table({"text": TEXTS, "label": ["a", "b", "a"]})})
    columns = Columns(text="text", labels=("label",))
    for rows, out in ((None, tmp_path / "last"), ("tokens", tmp_path / "tokens")):
        encode(source, columns, out, EncodeSpec(rows=rows, dtype="float32"), decoder)
    last, tokens = open_store(tmp_path / "last"), open_store(tmp_path / "tokens")
    assert (decoder.causal, last.rows) == (True, "last")
    ends = tokens["train"].row_offsets[1:] - 1
    np.testing.assert_array_equal(last["train"].hidden_states[:], tokens["train"].hidden_states[:][ends])
    assert choose_pool(tokens, TASKS["classification"], None) == "last"
    for wrong in (
        lambda: choose_pool(tokens, TASKS["classification"], "cls"),
        lambda: encode(source, columns, tmp_path / "cls", EncodeSpec(rows="cls"), decoder),
    ):
        with pytest.raises(UsageError, match="has seen nothing of the text") as caught:
            wrong()
        assert " last" in str(caught.value.remedy)
