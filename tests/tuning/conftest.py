"""A tiny random encoder on the disk, and stores of sub-tokens that it made of a corpus with tagged words."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

from fusionkit.dataset.task_stores import TaskChoice, TaskStores
from fusionkit.encode.job import make_job
from fusionkit.encode.shard import Shard, encode_shard
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.progress import FitProgress
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, layout, open_planned, open_store

hf: Any = transformers
PLACES, PEOPLE = ("oslo", "bergen", "york"), ("anna", "tom", "lee")
OTHERS = ("rain", "and", "snow", "fall", "over", "the", "old", "town", "of", "small", "boats", "near")
WORDS = (*PLACES, *PEOPLE, *OTHERS)
SIZES = {"train": 40, "validation": 12, "test": 16}


def _tokenizer() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    raw = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return hf.BertTokenizerFast(tokenizer_object=raw)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of three layers, 16 wide, with the usual dropout of 0.1 and weights ten times as large as usual."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    hf.BertModel(config).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def source_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of three to nine words; the label says whether one of them is a place, tags mark places and people."""
    folder = tmp_path_factory.mktemp("source") / "towns"
    folder.mkdir()
    rng = random.Random(0)
    for split, size in SIZES.items():
        lines = []
        for _ in range(size):
            words = [rng.choice(WORDS) for _ in range(rng.randint(3, 9))]
            tags = ["B-place" if word in PLACES else "B-who" if word in PEOPLE else "O" for word in words]
            label = "somewhere" if "B-place" in tags else "nowhere"
            lines.append(json.dumps({"tokens": words, "tags": tags, "label": label}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def store(model_folder: Path, source_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The whole source, encoded."""
    return open_store(encoded(model_folder, source_folder, tmp_path_factory.mktemp("stores") / "towns.store"))


@pytest.fixture(scope="session")
def planned(model_folder: Path, source_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same store, only planned."""
    place = tmp_path_factory.mktemp("stores") / "towns.store"
    return open_planned(encoded(model_folder, source_folder, place, planned=True))


@pytest.fixture(scope="session")
def weather(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A smaller store by the same encoder, without a validation split; its texts end with their label, rain or snow."""
    folder, rng = tmp_path_factory.mktemp("source") / "weather", random.Random(1)
    folder.mkdir()
    for split, size in {"train": 21, "test": 6}.items():
        texts = [" ".join(rng.choice(OTHERS) for _ in range(rng.randint(3, 6))) for _ in range(size)]
        rows = [{"text": f"{text} {kind}", "kind": kind} for text in texts for kind in [rng.choice(("rain", "snow"))]]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    place = tmp_path_factory.mktemp("stores") / "weather.store"
    return open_store(encoded(model_folder, folder, place, words=False))


@pytest.fixture(scope="session")
def stores(store: Store, weather: Store) -> TaskStores:
    """Two tasks, each over a store of its own."""
    return TaskStores(
        [
            TaskChoice("tags", store, label="tags", head="linear-tagger"),
            TaskChoice("kind", weather, head="linear-classifier", batch_size=4),
        ]
    )


@pytest.fixture(scope="session")
def exact(model_folder: Path, source_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The whole source in float32, in chunks of 60 rows."""
    place = tmp_path_factory.mktemp("stores") / "towns.store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 60 * 4 * 16 * 4)
        return open_store(encoded(model_folder, source_folder, place, dtype="float32"))


def encoded(model: Path, source: Path, place: Path, planned: bool = False, words: bool = True, **options: Any) -> Path:
    opened = open_source(str(source))
    encoder = load_encoder(str(model), device="cpu", words=words, untrained=options.get("untrained"))
    job = make_job(
        opened, guess_columns(opened), place, EncodeSpec(encoder=str(model), rows="tokens", **options), encoder
    )
    encode_shard(job, Shard(0, 1) if planned else Shard(1, 1))
    return place


class Steps(FitProgress):
    """Keeps the text of every step."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, work: float, text: str) -> None:
        self.steps.append(text)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Trains the only run of the given choices and returns its record, with ``folder``."""

    def one(store: Store, out: Path = tmp_path / "runs", **choices: Any) -> dict[str, Any]:
        (spec,) = specs_of(store, **choices)
        (record,) = fit(store, [spec], RunsFolder(out), starts=choices.get("starts", ()))
        assert record["status"] == "finished", record
        return {**record, "folder": out / spec.digest}

    return one


def specs_of(store: Store, **choices: Any) -> list[RunSpec]:
    """Runs of two epochs of ``last`` under a linear tagger, unless the choices say otherwise."""
    usual: dict[str, Any] = {"task": "tagging", "fusions": ["last"], "head": "linear-tagger", "epochs": (2,)}
    return expand(store, **{**usual, "batch_sizes": (8,), **choices})


@pytest.fixture
def specs() -> Callable[..., list[RunSpec]]:
    return specs_of


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
