"""A tiny random encoder, a source of many parts, and the undisturbed store that every disturbed one must equal."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors

from fusionkit.encode import EncodeReport, encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.sources import Source, guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

hf: Any = transformers
LAYERS, HIDDEN = 3, 16
# The kinds of stores that the same source is encoded into.
KINDS: dict[str, dict[str, Any]] = {
    "float16": {},
    "int8": {"dtype": "int8"},
    "zstd": {"compress": "zstd"},
    "int8-zstd": {"dtype": "int8", "compress": "zstd"},
}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 2 layers, 16 wide, in which each letter is a sub-token."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase)]
    raw = tokenizers.Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    place = tmp_path_factory.mktemp("model") / "bert"
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(pieces), hidden_size=HIDDEN, num_hidden_layers=LAYERS - 1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    hf.BertModel(config).save_pretrained(place)
    hf.BertTokenizerFast(tokenizer_object=raw).save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def encoder(model: Path) -> Encoder:
    return load_encoder(str(model), device="cpu")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source's folder: 36 and 8 examples of 1 to 11 words with a tag each."""
    folder = tmp_path_factory.mktemp("source") / "letters"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in {"train": 36, "validation": 8}.items():
        rows = [
            ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 5))) for _ in range(rng.integers(1, 12))]
            for _ in range(count)
        ]
        lines = [json.dumps({"tokens": row, "tags": ["O"] * len(row)}) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def source(place: Path) -> Source:
    return open_source(str(place))


@pytest.fixture(scope="session")
def chunk_bytes() -> int:
    """The bytes of 16 rows in float16, about one part."""
    return 16 * LAYERS * HIDDEN * 2


Encoding = Callable[..., EncodeReport]


@pytest.fixture(scope="session")
def encoded(source: Source, encoder: Encoder, chunk_bytes: int) -> Encoding:
    """``encode`` of the source into a place, in many parts; takes the kind of store and keywords of ``encode``."""

    def run(out: Path, kind: str = "float16", **how: Any) -> EncodeReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "CHUNK_BYTES", chunk_bytes)
            return encode(source, guess_columns(source), out, EncodeSpec(**KINDS[kind]), encoder, **how)

    return run


@pytest.fixture(scope="session")
def kinds() -> dict[str, dict[str, Any]]:
    """The fields of an encode's spec for each kind of store."""
    return KINDS


@pytest.fixture(scope="session")
def whole_of(encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The undisturbed store of a kind; tests must not change it."""
    folder = tmp_path_factory.mktemp("stores")

    def find(kind: str) -> Path:
        out = folder / kind
        if not out.exists():
            report = encoded(out, kind)
            assert report.outcome == "encoded"
            # A row of int8 is smaller: fewer parts.
            at_least = 10 if "int8" in kind else 16
            assert (
                sum(len(split["chunks"]["hidden_states"]) for split in report.manifest["splits"].values()) >= at_least
            )
        return out

    return find


@pytest.fixture(scope="session")
def whole(whole_of: Callable[[str], Path]) -> Path:
    """The undisturbed store in float16; tests must not change it."""
    return whole_of("float16")


@pytest.fixture(scope="session")
def content() -> Callable[[Path], dict[str, Any]]:
    """Every file of a store by its path inside; the manifest and the parts' records without times and machines."""

    def read(store: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in store.rglob("*"):
            name = file.relative_to(store).as_posix()
            if name == "manifest.json" or name.startswith("parts/"):
                value = json.loads(file.read_bytes())
                assert ("provenance" if name == "manifest.json" else "seconds") in value
                found[name] = {k: v for k, v in value.items() if k not in ("provenance", "seconds", "computed_with")}
            elif file.is_file():
                found[name] = file.read_bytes()
        return found

    return read


@pytest.fixture(scope="session")
def assert_same(whole_of: Callable[[str], Path], content: Callable[[Path], dict[str, Any]]) -> Callable[..., None]:
    """Asserts that a store equals the undisturbed one of its kind, file by file, with nothing left over beside it."""
    known: dict[str, dict[str, Any]] = {}

    def compare(store: Path, kind: str = "float16") -> None:
        expected = known.setdefault(kind, content(whole_of(kind)))
        found = content(store)
        assert sorted(found) == sorted(expected)
        assert [name for name in found if found[name] != expected[name]] == []
        assert [path.name for path in store.parent.iterdir() if path.name.startswith(f".{store.name}.")] == []

    return compare


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not cache decoded chunks: those that one test has read would hide damage from another."""
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("FUSIONKIT_CACHE", "0")
