"""A store whose parts were made by workers is the serial one, byte for byte, whatever happens to them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file, save_file
from torch import get_num_threads, set_num_threads

from fusionkit.cli.encode import encode_into
from fusionkit.cluster import Cluster, ClusterSettings
from fusionkit.cluster.part_map import cluster_parts
from fusionkit.encode import encode
from fusionkit.encode.batches import Part
from fusionkit.encode.lock import HeldError, only_encoder
from fusionkit.encode.part_records import record_failure, store_status
from fusionkit.encode.parts import NotFiniteError
from fusionkit.encode.worker import UnfitWorkerError
from fusionkit.encoder import Encoder, load_encoder
from fusionkit.errors import IdentityError, StoppedError, UsageError
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout, open_store

Content = Callable[[Path], dict[str, Any]]
Encoding = Callable[..., Any]
Pids = Callable[[], list[int]]


class Watch:
    """Does something at the first progress of the encoding."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.then, self.stage, self.tokens = then, "", 0
        self.said: list[str] = []

    def step(self, name: str, total: int, done: int, unit: str) -> None:
        self.stage = name

    def advance(self, count: int) -> None:
        if self.stage == "encoding":
            self.tokens += count
            self.then, then = (lambda: None), self.then
            then()

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.mark.parametrize("kind", ["float16", "int8-zstd"])
def test_workers_make_the_same_bytes_as_one_process(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, whole_of: Callable[[str], Path],
    content: Content, tmp_path: Path, kind: str,
) -> None:  # fmt: skip
    watch, notes = Watch(), list[str]()
    runner = cluster_parts(cluster, encoder, settings, note=notes.append)
    report = encoded(tmp_path / "s", kind, run_parts=runner, progress=watch, device="cpu")
    assert report.outcome == "encoded"
    assert content(tmp_path / "s") == content(whole_of(kind))
    assert watch.tokens == report.tokens > 0
    assert notes[-1].endswith("2 of 2 workers") or "lost" in notes[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


@pytest.mark.soak("products")
def test_short_sentences_have_the_bytes_of_a_process_with_other_threads(
    cluster: Cluster, settings: ClusterSettings, content: Content, tmp_path: Path
) -> None:
    """Real states of sentences of one to six words: the workers have one thread each, this process has two."""
    words = ["please", "find", "me", "one", "cheap", "flight"]
    (tmp_path / "data").mkdir()
    for split, times in {"train": 8, "validation": 2}.items():
        rows = [{"tokens": words[:count], "tags": ["O"] * count} for count in (1, 2, 3, 4, 5, 6) * times]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    opened, minilm, before = (
        open_source(str(tmp_path / "data")),
        load_encoder("minilm", device="cpu"),
        get_num_threads(),
    )
    for name, threads, runner in (
        ("serial", 2, None), ("workers", 1, cluster_parts(cluster, minilm, settings)),
    ):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "CHUNK_BYTES", 16 * 7 * 384 * 2)  # 16 rows
            set_num_threads(threads)
            try:
                encode(opened, guess_columns(opened), tmp_path / name, EncodeSpec(), minilm, run_parts=runner)
            finally:
                set_num_threads(before)
    assert content(tmp_path / "workers") == content(tmp_path / "serial")


def test_a_worker_killed_midway_is_replaced_and_the_bytes_are_the_same(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, whole_of: Callable[[str], Path],
    content: Content, tmp_path: Path, pids: Pids,
) -> None:  # fmt: skip
    victim = pids()[0]
    watch = Watch(lambda: os.kill(victim, signal.SIGKILL))
    report = encoded(tmp_path / "s", run_parts=cluster_parts(cluster, encoder, settings), progress=watch)
    assert report.outcome == "encoded"
    assert content(tmp_path / "s") == content(whole_of("float16"))
    assert victim not in pids()


def test_stopped_midway_a_store_goes_on_serially_to_the_same_bytes(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, whole_of: Callable[[str], Path],
    content: Content, tmp_path: Path,
) -> None:  # fmt: skip
    asked: list[bool] = []
    runner = cluster_parts(cluster, encoder, settings, stop=lambda: bool(asked))
    with pytest.raises(StoppedError, match="stopped with"):
        encoded(tmp_path / "s", run_parts=runner, progress=Watch(lambda: asked.append(True)))
    found = store_status(tmp_path / "s")
    assert found["state"] == "unfinished"
    assert sum(split["done"] for split in found["splits"].values()) > 0
    assert encoded(tmp_path / "s").outcome == "resumed"
    assert content(tmp_path / "s") == content(whole_of("float16"))
    assert store_status(tmp_path / "s")["state"] == "complete"


@pytest.fixture(scope="session")
def poisoned(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder, and no number for the letter z."""
    folder = tmp_path_factory.mktemp("poisoned")
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    weights["embeddings.word_embeddings.weight"][ids["z"]] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.soak("kills")
def test_a_part_that_fails_three_times_is_set_aside_and_the_others_are_done(
    cluster: Cluster, settings: ClusterSettings, poisoned: Path, tmp_path: Path, chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(layout, "CHUNK_BYTES", chunk_bytes)
    texts = [f"{letter * 3} {letter}" for letter in "abcdefghijklmnopqrstuvwxy"]
    texts[12] = "zz z"
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"text": text, "label": "a"}) for text in texts))
    source, loaded, out = (
        open_source(str(tmp_path / "train.jsonl")),
        load_encoder(str(poisoned), device="cpu"),
        tmp_path / "s",
    )
    watch = Watch()
    with pytest.raises(NotFiniteError) as caught:
        encode(
            source, guess_columns(source), out, EncodeSpec(rows="tokens"), loaded,
            run_parts=cluster_parts(cluster, loaded, settings), progress=watch,
        )  # fmt: skip
    found = store_status(out)
    failed = [(each["split"], each["chunk"], each["attempts"]) for each in found["failed"]]
    parts = found["splits"]["train"]["parts"]
    assert 1 <= len(failed) <= 2 < parts
    assert all(attempts == 3 for *_, attempts in failed)
    assert found["splits"]["train"]["done"] == parts - len(failed)
    names = ", ".join(f"train-{chunk:05d}" for chunk in sorted(chunk for _, chunk, _ in failed))
    assert sorted(caught.value.what.split(": ")[1].split(", ")) == names.split(", ")
    assert f"{len(failed)} of {parts} parts" in caught.value.what
    assert "is not finite in float16" in str(caught.value.received)
    assert caught.value.exit_code == 1
    assert all("layer 0 of encoder" in each["error"] for each in found["failed"])
    assert sum("is set aside" in line for line in watch.said) == len(failed)


@pytest.mark.soak("products")
def test_the_record_of_a_failure_goes_with_it(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, whole_of: Callable[[str], Path],
    content: Content, tmp_path: Path,
) -> None:  # fmt: skip
    out, asked = tmp_path / "s", [True]
    with pytest.raises(StoppedError):
        encoded(out, run_parts=cluster_parts(cluster, encoder, settings, stop=lambda: bool(asked)))
    done = store_status(out)["splits"]["validation"]["done"]
    record_failure(out, Part("validation", done), ValueError("once"), 3)
    assert [each["error"] for each in store_status(out)["failed"]] == ["ValueError: once"]
    assert encoded(out, run_parts=cluster_parts(cluster, encoder, settings)).outcome == "resumed"
    assert content(out) == content(whole_of("float16"))


def test_a_worker_with_another_encoder_is_refused(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, poisoned: Path, tmp_path: Path
) -> None:
    assert encoder.loading is not None
    other = dataclasses.replace(encoder, loading={**encoder.loading, "reference": str(poisoned)})
    with pytest.raises(UnfitWorkerError, match="another encoder") as caught:
        encoded(tmp_path / "s", run_parts=cluster_parts(cluster, other, settings))
    assert "put the same encoder on every machine" in str(caught.value.remedy)
    assert not list((tmp_path / "s" / "parts").iterdir())
    assert encoded(tmp_path / "s").outcome == "resumed"
    assert open_store(tmp_path / "s").rows == "words"


def test_a_worker_with_another_version_of_a_library_is_refused(
    cluster: Cluster, settings: ClusterSettings, encoder: Encoder, encoded: Encoding, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its states might be others: the store's identity has the driver's version."""
    with monkeypatch.context() as patch:
        patch.setattr("fusionkit.encode.job.version", lambda name: "0.1" if name == "tokenizers" else version(name))
        with pytest.raises(UnfitWorkerError, match="other versions") as caught:
            encoded(tmp_path / "s", run_parts=cluster_parts(cluster, encoder, settings))
    assert "tokenizers 0.1" in str(caught.value.expected)
    assert f"tokenizers {version('tokenizers')}" in str(caught.value.received)
    assert "install the same versions" in str(caught.value.remedy)
    assert not list((tmp_path / "s" / "parts").iterdir())
    with monkeypatch.context() as patch:  # a build for another device
        patch.setattr("fusionkit.encode.job.version", lambda name: version(name).partition("+")[0] + "+cu126")
        assert encoded(tmp_path / "t", run_parts=cluster_parts(cluster, encoder, settings)).outcome == "encoded"


@pytest.mark.parametrize(
    ("options", "limit", "error"),
    [({"rows": "mean"}, None, IdentityError), ({}, None, HeldError), ({}, 1, UsageError)],
    ids=["other rows", "another process", "budget"],
)
def test_what_is_refused_is_told_before_any_worker_is_asked_for(
    encoded: Encoding, place: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any], limit: int | None, error: type[Exception],
) -> None:  # fmt: skip
    """A worker's job may wait in a queue for a day."""
    asked = Mock(side_effect=StoppedError("a worker is asked for"))
    monkeypatch.setattr("fusionkit.cluster.encode_workers.open_encode_workers", asked)
    given, out = {"source": str(place), "encoder": str(model), **options}, tmp_path / "s"
    with pytest.raises(StoppedError):
        encoded(out, stop=lambda: True)
    with ExitStack() as stack:
        if error is HeldError:
            stack.enter_context(only_encoder(out))
        with pytest.raises(error) as caught:
            encode_into(out, given, "auto", ClusterSettings(kind="slurm"), limit=limit)
    assert type(caught.value) is error
    assert not asked.called
    with pytest.raises(StoppedError, match="a worker is asked for"):
        encode_into(out, given, "auto", ClusterSettings(kind="slurm"), overwrite=True)
