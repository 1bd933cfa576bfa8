"""A tiny random BERT of letters, a source of words with tags and labels, and runs over stores of it."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

from fusionkit.encode import encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.sources import Columns, Source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

hf: Any = transformers
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
VOCABULARY += [f"##{letter}" for letter in string.ascii_lowercase]
MAX_LENGTH = 24


@pytest.fixture(scope="session")
def save_bert(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Saves a BERT of 3 layers, 16 wide, with random weights of this seed."""

    def save(seed: int) -> Path:
        pieces = models.WordPiece({piece: i for i, piece in enumerate(VOCABULARY)}, unk_token="[UNK]")
        raw = tokenizers.Tokenizer(pieces)
        raw.normalizer = normalizers.BertNormalizer(lowercase=True)
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        place = tmp_path_factory.mktemp("bert")
        torch.manual_seed(seed)
        config = hf.BertConfig(
            vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=64, initializer_range=0.5,
        )  # fmt: skip
        hf.BertModel(config).save_pretrained(place)
        hf.BertTokenizerFast(tokenizer_object=raw).save_pretrained(place)
        return place

    return save


@pytest.fixture(scope="session")
def bert(save_bert: Callable[[int], Path]) -> Path:
    return save_bert(0)


@pytest.fixture(scope="session")
def encoder(bert: Path) -> Encoder:
    return load_encoder(str(bert), device="cpu", words=True)


@pytest.fixture(scope="session")
def source() -> Source:
    """Sentences of 1 to 9 words of 1 to 5 letters, some cut and some with a word that has no sub-token."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> pa.Table:
        words = [
            ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 6))) for _ in range(rng.integers(1, 10))]
            for _ in range(count)
        ]
        words[3].insert(0, "\u200b")
        tags = [["O" if len(word) < 3 else f"B-{word[0]}" if word[0] < "d" else "B-x" for word in row] for row in words]
        label = [row[-1][0] for row in words]
        text = [" ".join(row) for row in words]
        share = [len(row[-1]) / 4 for row in words]
        return pa.table(
            {"tokens": words, "tags": tags, "label": label, "text": text, "pair": text[::-1], "share": share}
        )

    return Source("letters", {"train": examples(40), "validation": examples(30)})


@pytest.fixture(scope="session")
def make_store(source: Source, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """Encodes the source: ``make_store("tokens", "float32")`` its words, or with ``roles`` the columns named there."""
    made: dict[tuple[Any, ...], Store] = {}

    def make(rows: str, dtype: str = "float32", encoder: Encoder = encoder, **roles: str) -> Store:
        key = rows, dtype, encoder.name, *roles.items()
        if key not in made:
            columns = Columns(**roles, labels=("label",)) if roles else Columns(  # type: ignore[arg-type]
                tokens="tokens", tags=("tags",), labels=("label",)
            )  # fmt: skip
            out = tmp_path_factory.mktemp("stores") / "store"
            encode(source, columns, out, EncodeSpec(rows=rows, dtype=dtype, max_length=MAX_LENGTH), encoder)
            made[key] = open_store(out)
        return made[key]

    return make


@pytest.fixture(scope="session")
def fit_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains runs over a store and returns their folder: ``fit_run(store, task="tagging", fusions=["linear"])``."""

    def run(store: Store, runs: Path | None = None, **choices: Any) -> Path:
        folder = runs or tmp_path_factory.mktemp("runs")
        specs = expand(store, epochs=(2,), lrs=(1e-2,), **choices)
        assert all(record["status"] == "finished" for record in fit(store, specs, RunsFolder(folder)))
        return folder

    return run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Use one thread, so that sums have the same order on every machine."""
    torch.set_num_threads(1)
