"""A hand-written corpus encoded into small real stores, and toy data with states that a test chooses."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from numpy.typing import NDArray

from fusionkit.dataset.split import TaskSplit
from fusionkit.dataset.task_data import TaskData
from fusionkit.encode import encode
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.fit.progress import FitProgress
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import HiddenStates, Store, open_store
from fusionkit.store.chunk_access import MappedChunks
from fusionkit.store.chunks import write_chunk
from fusionkit.store.layout import StatesLayout, chunk_path
from fusionkit.tasks import TASKS

Rows = list[dict[str, Any]]
MAX_LENGTH = 9  # seven sub-tokens between the special ones
NO_TOKEN = "\u200b"  # a word that the tokenizer drops


def _row(words: str, tags: str, label: str | None) -> dict[str, Any]:
    return {"tokens": words.split(" ") if words else [], "tags": tags.split(), "label": label}


CORPUS: dict[str, Rows] = {
    "train": [
        _row("rain in Oslo", "O O B-place", "weather"),
        _row("Anna unquestionably bakes", "B-who O O", "food"),
        _row(f"snow {NO_TOKEN} over New York", "O O O B-place I-place", "weather"),
        _row("soup", "O", None),
        _row("Tom and Anna Lee fry the smallest fish in Bergen", "B-who O B-who I-who" + " O" * 5 + " B-place", "food"),
        _row("", "", "weather"),
        _row("fog", "O", "weather"),
        _row("bread for Tom", "O O B-who", "food"),
    ],
    "validation": [
        _row("Tom cooks rice", "B-who O O", "food"),
        _row("Rosenborg and hail in Oslo", "B-team O O O B-place", "weather"),
        _row("wind", "O", "weather"),
    ],
    "test": [
        _row(f"{NO_TOKEN} Anna eats", "O B-who O", "food"),
        _row("sleet and storms in Bergen and in New York", "O O O O B-place O O B-place I-place", "weather"),
        _row("a marathon", "O O", "sport"),
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def corpus() -> dict[str, Rows]:
    """Splits of rows with ``tokens``, ``tags`` and ``label``."""
    return CORPUS


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The bundled encoder."""
    return load_encoder("minilm", device="cpu", words=True)


@pytest.fixture(scope="session")
def make_store(minilm: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """Encodes rows by split: ``make_store("words", train=[…], test=[…])``."""

    def make(rows: str, name: str = "corpus", **splits: Rows) -> Store:
        folder = tmp_path_factory.mktemp("source") / name
        folder.mkdir()
        for split, examples in splits.items():
            lines = [json.dumps(example, ensure_ascii=False) for example in examples]
            (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        source = open_source(str(folder))
        spec = EncodeSpec(rows=rows, max_length=MAX_LENGTH)
        encode(source, guess_columns(source), folder / "store", spec, minilm)
        return open_store(folder / "store")

    return make


@pytest.fixture(scope="session")
def corpus_store(make_store: Callable[..., Store]) -> Callable[[str], Store]:
    """The corpus with one kind of rows, encoded once per kind."""
    made: dict[str, Store] = {}

    def get(rows: str) -> Store:
        if rows not in made:
            made[rows] = make_store(rows, **CORPUS)
        return made[rows]

    return get


@pytest.fixture(scope="session")
def stored() -> Callable[[Store, str], NDArray[np.float32]]:
    """All of a split's states as Zarr reads them, ``[rows, layers, hidden]``."""

    def read(store: Store, split: str) -> NDArray[np.float32]:
        group = zarr.open_group(store.path / "states.zarr", mode="r")
        array = group[f"{split}/hidden_states"]
        assert isinstance(array, zarr.Array)
        return np.asarray(array[:]).astype(np.float32)

    return read


@dataclass
class Watch(FitProgress):
    """Keeps everything that a sweep reports."""

    begun: list[tuple[int, int]] = field(default_factory=list)
    epochs: int = 0
    foretold: float = 0.0  # the work of all runs that began
    done: float = 0.0
    ended: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def begin(self, runs: int, epochs: int, work: Any) -> None:
        self.begun.append((runs, epochs))
        self.foretold += sum(work.values())

    def step(self, work: float, text: str) -> None:
        self.done += work

    def epoch(self, work: float) -> None:
        self.epochs += 1
        self.done += work

    def run(self, record: dict[str, Any]) -> None:
        self.ended.append(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        self.others.append(record)

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture(scope="session")
def sweeping() -> Any:
    """``sweeping.py`` beside this file, which runs sweeps in processes of their own."""
    return importlib.import_module("sweeping")


@pytest.fixture
def watch() -> Watch:
    """A new receiver of progress."""
    return Watch()


HIDDEN, LAYERS = 6, 3


def _toy_split(
    folder: Path, split: str, examples: int, words: bool, learnable: bool, gap: float, height: int | None, seed: int
) -> TaskSplit:
    """Standard normal states; the class is the sign of one number of layer 1, or random if not ``learnable``."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, examples) if words else np.ones(examples, dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n = int(offsets[-1])
    block = rng.normal(size=(LAYERS, n, HIDDEN)).astype(np.float32)
    block[1, :, 2] += gap * np.sign(block[1, :, 2])  # a gap between the classes
    layout = StatesLayout(n, LAYERS, HIDDEN, height or n, "float32")
    for chunk in range(layout.chunks):
        start, stop = layout.chunk_rows(chunk)
        write_chunk(chunk_path(folder, split, chunk), block[:, start:stop], layout.arrays[0])
    classes = (block[1, :, 2] > 0).astype(np.int64) if learnable else rng.integers(0, 2, n)
    names = np.array(["ADJ", "NOUN"] if words else ["left", "right"])[classes].tolist()
    gold = [names[a:b] for a, b in pairwise(offsets)] if words else names
    return TaskSplit(
        HiddenStates(MappedChunks(folder, split, layout), layout),
        np.arange(n, dtype=np.int64),
        offsets,
        classes,
        gold,
        [f"{split}-{i}" for i in range(examples)],
        np.ones(n, dtype=bool) if words else None,
        offsets if words else None,
    )


@pytest.fixture
def toy(tmp_path: Path) -> Callable[..., TaskData]:
    """Two classes over random states in real chunks of ``height`` rows, with three layers, six wide."""

    def make(
        *,
        words: bool = False,
        learnable: bool = True,
        gap: float = 6.0,
        examples: int = 60,
        height: int | None = None,
    ) -> TaskData:
        splits = [
            _toy_split(tmp_path, name, size, words, learnable, gap, height, seed)
            for seed, (name, size) in enumerate((("train", examples), ("validation", 100), ("test", 200)))
        ]
        labels = ["ADJ", "NOUN"] if words else ["left", "right"]
        task = TASKS["tagging" if words else "classification"]
        return TaskData(task, "label", None, labels, 2, labels[0], splits[0], splits[1], splits[2])

    return make


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Use one thread, so that sums have the same order on every machine."""
    torch.set_num_threads(1)
