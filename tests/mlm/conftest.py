"""A tiny BERT and a tiny RoBERTa with LM heads, texts of letters, and stores of their masked sub-tokens."""

from __future__ import annotations

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
from fusionkit.fit.progress import FitProgress
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, layout, open_store

hf: Any = transformers
KINDS = ("bert", "roberta")
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
PIECES = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]


def bert_tokenizer() -> Any:
    """One piece per letter; other characters are unknown."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES]
    raw = tokenizers.Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return hf.BertTokenizerFast(tokenizer_object=raw)


def roberta_tokenizer() -> Any:
    """One piece per byte, no merges."""
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    raw = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return hf.RobertaTokenizerFast(tokenizer_object=raw)


def saved(place: Path, model: Any, tokenizer: Any) -> Path:
    """Save a checkpoint whose weights and biases are so large that different formulas give different results."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                continue
            weight.normal_(0, 0.3)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the tiny ``bert`` or ``roberta``, as ``save_pretrained`` writes it."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(0)
            if kind == "bert":
                tokenizer = bert_tokenizer()
                config = hf.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **SIZES)
                model = hf.BertForMaskedLM(config)
            else:
                tokenizer = roberta_tokenizer()
                config = hf.RobertaConfig(
                    vocab_size=len(tokenizer), max_position_embeddings=66,
                    pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES,
                )  # fmt: skip
                model = hf.RobertaForMaskedLM(config)
            made[kind] = saved(tmp_path_factory.mktemp(kind), model, tokenizer)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def encoder(checkpoint: Callable[[str], Path]) -> Callable[[str], Encoder]:
    made: dict[str, Encoder] = {}

    def get(kind: str) -> Encoder:
        if kind not in made:
            made[kind] = load_encoder(str(checkpoint(kind)), device="cpu", lm_head="own")
        return made[kind]

    return get


@pytest.fixture(scope="session")
def source() -> Source:
    """Texts of 1 to 12 words, some with a word of characters other than a to z.

    Train has 60 texts, 8 of them twice, and 2 more texts of one letter; validation and test have 25 texts each.
    """
    rng = np.random.default_rng(0)

    def texts(count: int) -> list[str]:
        words = [["".join(rng.choice(list("abcdefgh"), rng.integers(1, 5))) for _ in range(12)] for _ in range(count)]
        return [" ".join([*row[: rng.integers(1, 13)], *(["é!"] if i % 7 == 0 else [])]) for i, row in enumerate(words)]

    train = texts(60)
    splits = {"train": [*train, *train[:8], "a", "b"], "validation": texts(25), "test": texts(25)}
    return Source("letters", {name: pa.table({"text": rows}) for name, rows in splits.items()})


Encoding = Callable[..., EncodeReport]


@pytest.fixture(scope="session")
def encoded(encoder: Callable[[str], Encoder]) -> Encoding:
    """``encode --task mlm``; takes keywords of the spec and of ``encode``."""

    def run(source: Source, out: Path, kind: str = "bert", **how: Any) -> EncodeReport:
        given = {name: how.pop(name) for name in ("overwrite", "stop", "progress") if name in how}
        spec = EncodeSpec(**{"task": "mlm", "dtype": "float32", **how})
        return encode(source, guess_columns(source), out, spec, encoder(kind), **given)

    return run


@pytest.fixture(scope="session")
def store(source: Source, encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """The source encoded by ``bert`` or ``roberta``, in several parts per split; tests must not change it."""
    made: dict[str, Store] = {}

    def get(kind: str) -> Store:
        if kind not in made:
            out = tmp_path_factory.mktemp("stores") / kind
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(layout, "CHUNK_BYTES", 40 * 4 * 16 * 4)
                encoded(source, out, kind)
            made[kind] = open_store(out)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def sequences() -> Callable[[Store, str], list[tuple[NDArray[np.int64], NDArray[np.int64]]]]:
    """For each example the sub-tokens that the encoder saw and their labels, read by Zarr alone."""
    import zarr

    def read(store: Store, split: str) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        group: Any = zarr.open_group(store.path / "states.zarr" / split, mode="r")
        offsets, ids, labels = (np.asarray(group[name][:]) for name in ("token_offsets", "token_ids", "mlm_labels"))
        cuts = offsets[1:-1]
        return list(zip(np.split(ids.astype(np.int64), cuts), np.split(labels.astype(np.int64), cuts), strict=True))

    return read


class Watch(FitProgress):
    """Counts the epochs that are left, and asserts that every run finishes in this process."""

    def begin(self, runs: int, epochs: int, work: Any) -> None:
        self.left = epochs

    def epoch(self, work: float) -> None:
        self.left -= 1

    def run(self, record: dict[str, Any]) -> None:
        assert record["status"] == "finished"

    def elsewhere(self, record: dict[str, Any]) -> None:
        raise AssertionError(record)


@pytest.fixture
def watch() -> Watch:
    """A new receiver of progress."""
    return Watch()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Use one thread, so that sums have the same order on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what ``HF_HUB_OFFLINE=1`` sets; the library reads the variable only when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
