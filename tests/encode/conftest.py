"""A tiny random BERT whose sub-tokens can be derived by hand, sources in memory, and encoding of them."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import models, normalizers, pre_tokenizers, processors

from fusionkit.encode import EncodeReport, encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

hf: Any = transformers
# One piece per letter: a word of n letters has n sub-tokens.
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
VOCABULARY += [f"##{letter}" for letter in string.ascii_lowercase]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 3 layers, 16 wide, 64 positions, as ``save_pretrained`` writes it."""
    raw = tokenizers.Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    place = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    hf.BertModel(config).save_pretrained(place)
    hf.BertTokenizerFast(tokenizer_object=raw).save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def encoder(folder: Path) -> Encoder:
    return load_encoder(str(folder), device="cpu")


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    return load_encoder("minilm", device="cpu")


@pytest.fixture(scope="session")
def source() -> Source:
    """45 examples of 1 to 12 words of 1 to 4 letters, with one tag per word; 15 more for validation."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> pa.Table:
        words = [
            ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 5))) for _ in range(rng.integers(1, 13))]
            for _ in range(count)
        ]
        tags = [["O" if len(word) < 3 else "B-LONG" for word in row] for row in words]
        return pa.table({"tokens": words, "tags": tags})

    return Source("letters", {"train": examples(45), "validation": examples(15)})


@pytest.fixture(scope="session")
def pairs() -> Source:
    """Texts that repeat: on a pair's other side, in other examples or the other split, in capitals, with themselves."""
    rng = np.random.default_rng(3)
    texts = [
        " ".join("".join(rng.choice(list("abcdefgh"), rng.integers(1, 5))) for _ in range(rng.integers(1, 10)))
        for _ in range(40)
    ]
    first = [*texts[:30], texts[3], texts[0], "", texts[4].upper(), texts[7]]
    second = [*texts[10:40], texts[3], texts[20], texts[1], texts[4], texts[3]]
    train = pa.table({"sentence1": first, "sentence2": second, "label": [k % 2 for k in range(35)]})
    test = pa.table({"sentence1": [*texts[35:], "new"], "sentence2": ["new", *texts[:5]], "label": [0, 1] * 3})
    return Source("pairs", {"train": train, "test": test})


Encoding = Callable[..., EncodeReport]
# About 40 rows of the tiny encoder's four layers in float16.
SMALL_CHUNK_BYTES = 40 * 4 * 16 * 2


@pytest.fixture(scope="session")
def encoded(encoder: Encoder) -> Encoding:
    """``encode`` with the tiny encoder and guessed columns; takes keywords of the spec and of ``encode``."""

    def run(source: Source, out: Path, **how: Any) -> EncodeReport:
        given = {
            name: how.pop(name) for name in ("overwrite", "progress", "stop", "budget", "run_parts") if name in how
        }
        model = how.pop("model", encoder)
        return encode(source, guess_columns(source), out, EncodeSpec(**how), model, **given)

    return run


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks as small as those of the store ``whole``."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", SMALL_CHUNK_BYTES)


@pytest.fixture
def content() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a store that holds data, by its path inside: all but the manifest and the parts' records."""

    def read(store: Path) -> dict[str, bytes]:
        files = [file for file in store.rglob("*") if file.is_file()]
        inside = {file.relative_to(store).as_posix(): file for file in files}
        return {
            name: file.read_bytes()
            for name, file in inside.items()
            if name.split("/")[0] not in ("manifest.json", "parts")
        }

    return read


@pytest.fixture
def assert_same(content: Callable[[Path], dict[str, bytes]]) -> Callable[[Path, Path], None]:
    """Asserts that two stores have the same data, byte for byte, and the same manifests but for ``provenance``."""

    def compare(one: Path, other: Path) -> None:
        assert content(one) == content(other)
        manifests = [json.loads((store / "manifest.json").read_text()) for store in (one, other)]
        for manifest in manifests:
            del manifest["provenance"]
        assert manifests[0] == manifests[1]

    return compare


@pytest.fixture(scope="session")
def whole(source: Source, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source encoded in one go, into several parts per split; tests must not change it."""
    out = tmp_path_factory.mktemp("stores") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", SMALL_CHUNK_BYTES)
        report = encode(source, guess_columns(source), out, EncodeSpec(), encoder)
    assert report.outcome == "encoded"
    assert [len(split["chunks"]["hidden_states"]) for split in report.manifest["splits"].values()] == [7, 3]
    return out


@pytest.fixture(scope="session")
def alone() -> Callable[..., tuple[NDArray[np.float32], list[int | None]]]:
    """States and each sub-token's word of one example, by ``transformers`` without fusionkit."""
    loaded: dict[str, tuple[Any, Any]] = {}

    def run(place: str, text: str | list[str], pair: str | None = None, limit: int = 512) -> Any:
        if place not in loaded:
            loaded[place] = hf.AutoTokenizer.from_pretrained(place), hf.AutoModel.from_pretrained(place).eval()
        tokenizer, model = loaded[place]
        inputs = tokenizer(
            text,
            pair,
            is_split_into_words=isinstance(text, list),
            truncation=True,
            max_length=limit,
            return_tensors="pt",
        )
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        return torch.cat(hidden).numpy(), inputs.word_ids(0)  # [layers, tokens, hidden], [tokens]

    return run


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache decoded chunks among the tests' files."""
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what ``HF_HUB_OFFLINE=1`` sets; the library reads the variable only when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
