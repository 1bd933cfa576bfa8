"""Stores of masked sub-tokens: their rows beside transformers' own, killed and gone on with, damaged, other work."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import load_file

from fusionkit.dataset.mlm import load_masked
from fusionkit.encode import EncodeReport, encode
from fusionkit.encode.estimate import estimate
from fusionkit.encode.repair import compare_sample, damaged_parts, repair
from fusionkit.encode.repeats import DuplicateFinder
from fusionkit.encoder import Encoder, Tokenized, load_encoder
from fusionkit.errors import IdentityError, StoppedError, StoreError, UsageError
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, layout, open_store, verify_store
from fusionkit.tasks import TASKS

hf: Any = transformers
Encoding = Callable[..., EncodeReport]
Kind = pytest.mark.parametrize("kind", ["bert", "roberta"])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the store of the fixture ``store``."""
    monkeypatch.setattr(layout, "CHUNK_BYTES", 40 * 4 * 16 * 4)


@pytest.fixture
def copied(store: Any, small_parts: None, tmp_path: Path) -> Path:
    """A copy of that store of ``bert``, to change."""
    return Path(shutil.copytree(store("bert").path, tmp_path / "s"))


def content(store: Path) -> dict[str, bytes]:
    """Every file but the parts' records, which tell the time; of the manifest, all but when it was made."""
    files = {f.relative_to(store).as_posix(): f.read_bytes() for f in store.rglob("*") if f.is_file()}
    found = {name: data for name, data in files.items() if not name.startswith("parts/")}
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["provenance"]
    return {**found, "manifest.json": json.dumps(manifest).encode()}


@Kind
def test_rows_are_the_masked_sub_tokens_states(kind: str, store: Any, sequences: Any, checkpoint: Any) -> None:
    made = store(kind)
    model = hf.AutoModel.from_pretrained(checkpoint(kind)).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(checkpoint(kind))
    seen = 0
    for split in made.splits:
        part = made[split]
        found = sequences(made, split)
        assert len(found) == len(part)
        for example, (ids, labels) in enumerate(found):
            original = np.where(labels == -100, ids, labels)
            assert original.tolist() == tokenizer(part.examples["text"][example])["input_ids"]
            at = np.flatnonzero(labels != -100)
            rows = part.take([example]).hidden_states
            assert len(rows) == len(at)
            with torch.no_grad():
                states = model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
            torch.testing.assert_close(rows, torch.cat(states)[:, at].transpose(0, 1), rtol=1e-4, atol=1e-4)
            start, stop = part.row_offsets[example : example + 2]
            assert part.masked_ids[start:stop].tolist() == labels[at].tolist()
            seen += len(at)
    assert seen > 150
    assert len(made.manifest["splits"]["train"]["chunks"]["hidden_states"]) > 2


def test_the_head_in_the_store_is_the_checkpoint_s(store: Any, checkpoint: Any) -> None:
    made = store("bert")
    given = load_file(checkpoint("bert") / "model.safetensors")
    kept = load_file(made.path / "lm_head.safetensors")
    wanted = {
        "dense": "cls.predictions.transform.dense", "layer_norm": "cls.predictions.transform.LayerNorm",
    }  # fmt: skip
    for name, inside in wanted.items():
        for which in ("weight", "bias"):
            assert torch.equal(kept[f"{name}.{which}"], given[f"{inside}.{which}"])
    assert torch.equal(kept["decoder.weight"], given["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(kept["decoder.bias"], given["cls.predictions.bias"])
    facts = made.manifest["identity"]["mlm"]
    assert (facts["mask_seed"], facts["mask_share"], facts["lm_head"]["activation"]) == (0, 0.15, "gelu")
    assert made.manifest["files"]["lm_head.safetensors"] == facts["lm_head"]["sha256"]


@pytest.mark.usefixtures("small_parts")
def test_the_same_work_gives_the_same_bytes_however_it_is_split(
    source: Source, encoded: Encoding, store: Any, tmp_path: Path
) -> None:
    """In another order of splits' pieces, stopped after each part."""
    wanted, rounds = content(store("bert").path), 0
    tables = {name: examples.head() for name, examples in source.splits.items()}
    pieces = {name: pa.concat_tables([table.slice(0, 7), table.slice(7)]) for name, table in tables.items()}
    while True:
        answers, planned = iter([False, True]), tmp_path / "s" / "plan.json"  # asked while it is planned, too
        try:
            encoded(
                Source("letters", pieces),
                tmp_path / "s",
                stop=lambda answers=answers, planned=planned: planned.is_file() and next(answers),
            )
            break
        except StoppedError:
            rounds += 1
    assert rounds > 3
    assert content(tmp_path / "s") == wanted


KILLED = """
import json, os, signal, sys
from pathlib import Path
import pyarrow as pa
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.dataset.mlm import load_masked
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout

model, out, data, word = sys.argv[1:]
layout.CHUNK_BYTES = 40 * 4 * 16 * 4
fsync = os.fsync

def fsync_or_die(handle):
    if word in os.readlink(f"/proc/self/fd/{handle}"):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

os.fsync = fsync_or_die
source = Source("letters", {split: pa.table(columns) for split, columns in json.loads(data).items()})
spec = EncodeSpec(task="mlm", dtype="float32")
encode(source, guess_columns(source), Path(out), spec, load_encoder(model, device="cpu", lm_head="own"))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see which file is written")
@pytest.mark.soak("kills")
@pytest.mark.parametrize("word", ["/train/hidden_states/c/1/0/", "lm_head.safetensors"])
@pytest.mark.usefixtures("small_parts")
def test_a_killed_encode_ends_with_the_same_bytes(
    word: str, source: Source, encoded: Encoding, checkpoint: Any, store: Any, tmp_path: Path
) -> None:
    data = json.dumps({split: examples.head().to_pydict() for split, examples in source.splits.items()})
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, checkpoint("bert"), tmp_path / "s", data, word],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    report = encoded(source, tmp_path / "s")
    assert report.outcome == ("encoded" if word == "lm_head.safetensors" else "resumed")
    assert content(tmp_path / "s") == content(store("bert").path)
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"mask_seed": 1}, "mlm.mask_seed"), ({"mask_share": 0.2}, "mlm.mask_share"), ({"task": None}, "rows")],
)
def test_other_masks_are_other_work(
    asked: dict[str, Any], field: str, source: Source, encoded: Encoding, copied: Path
) -> None:
    assert encoded(source, copied).outcome == "complete"
    before = content(copied)
    with pytest.raises(IdentityError, match="these fields differ") as caught:
        encoded(source, copied, **asked)
    assert f"{field} " in caught.value.what
    assert content(copied) == before


def test_another_head_is_other_work(source: Source, encoder: Any, copied: Path) -> None:
    given = encoder("bert")
    head = dataclasses.replace(given.masked_lm.head, activation="relu")
    other = dataclasses.replace(given, masked_lm=dataclasses.replace(given.masked_lm, head=head))
    spec = EncodeSpec(task="mlm", dtype="float32")
    with pytest.raises(IdentityError, match=r"mlm\.lm_head\.activation"):
        encode(source, guess_columns(source), copied, spec, other)


def test_an_encoder_that_came_without_its_head_is_refused(source: Source, checkpoint: Any, tmp_path: Path) -> None:
    plain = load_encoder(str(checkpoint("bert")), device="cpu")
    for made_of in ("own", "embeddings"):
        spec = EncodeSpec(task="mlm", lm_head=made_of)
        with pytest.raises(UsageError, match="was loaded without the LM head to encode with") as caught:
            encode(source, guess_columns(source), tmp_path / "s", spec, plain)
        assert caught.value.remedy == f"load it by load_encoder(…, lm_head={made_of!r})"
    other = load_encoder(str(checkpoint("bert")), device="cpu", lm_head="embeddings")
    with pytest.raises(UsageError, match="was loaded without the LM head to encode with"):
        encode(source, guess_columns(source), tmp_path / "s", EncodeSpec(task="mlm"), other)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="unknown LM head 'tied'"):
        load_encoder(str(checkpoint("bert")), device="cpu", lm_head="tied")


@pytest.mark.parametrize("name", ["lm_head.safetensors", "states.zarr/train/mlm_labels/c/0"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_damage_is_found_and_refused(name: str, how: str, copied: Path) -> None:
    assert all(checked.fault is None for checked in verify_store(copied))
    assert name in {checked.path for checked in verify_store(copied)}
    file = copied / name
    if how == "removed":
        file.unlink()
    else:
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    assert {checked.path for checked in verify_store(copied) if checked.fault} == {name}
    with pytest.raises(StoreError, match="is damaged"):
        load_masked(open_store(copied), TASKS["mlm"])


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["identity"].pop("mlm"),
        lambda m: m["identity"]["mlm"].pop("mask_share"),
        lambda m: m["identity"]["mlm"]["lm_head"].update(activation="softsign"),
        lambda m: m["identity"]["mlm"]["lm_head"].update(sha256="0" * 64),
        lambda m: m["files"].pop("lm_head.safetensors"),
    ],
)
def test_a_manifest_that_tells_other_things_is_refused(
    change: Callable[[dict[str, Any]], object], copied: Path
) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    change(manifest)
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        open_store(copied)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("how", [{"dtype": "int8"}, {"compress": "zstd"}, {"dtype": "float16"}])
def test_other_ways_of_storing_hold_the_same_rows(
    how: dict[str, Any],
    source: Source,
    encoded: Encoding,
    encoder: Callable[[str], Encoder],
    store: Any,
    tmp_path: Path,
) -> None:
    encoded(source, tmp_path / "s", **how)
    made, wanted = open_store(tmp_path / "s"), store("bert")
    for split in made.splits:
        assert made[split].masked_ids.tolist() == wanted[split].masked_ids.tolist()
        found = torch.as_tensor(made[split].take(np.arange(len(made[split]))).hidden_states).float()
        states = wanted[split].take(np.arange(len(made[split]))).hidden_states
        assert float((found - states).abs().max()) < (0.05 if "dtype" in how else 1e-5)
    assert max(of.largest for of in compare_sample(made, encoder("bert"), 12)) < 0.05


def test_a_damaged_chunk_is_encoded_again(encoder: Any, copied: Path) -> None:
    before = content(copied)
    file = copied / "states.zarr/train/hidden_states/c/1/0/0"
    file.write_bytes(bytes(file.stat().st_size))
    faults = {checked.path: checked.fault for checked in verify_store(copied) if checked.fault}
    parts = damaged_parts(copied, faults)
    assert len(parts) == 1
    assert repair(copied, parts, encoder("bert")) == []
    assert content(copied) == before


def test_what_looks_alike_under_its_masks_is_encoded_once(encoded: Encoding, sequences: Any, tmp_path: Path) -> None:
    """The same text has the same masks; two texts with the same rows of the same sub-tokens are alike too."""
    texts = ["abcd ef", "hgfe abc", "abcd ef"]
    source = Source("s", {"train": pa.table({"text": texts}), "validation": pa.table({"text": ["hgfe abc"]})})
    encoded(source, tmp_path / "s", mask_share=0.5)
    made = open_store(tmp_path / "s")
    train, validation = sequences(made, "train"), sequences(made, "validation")
    assert [a.tolist() for a in train[0]] == [a.tolist() for a in train[2]]
    assert [a.tolist() for a in train[1]] == [a.tolist() for a in validation[0]]
    first = layout.read_small(tmp_path / "s", "train", "first_alike").tolist()
    assert first == [0, 1, 0]
    assert layout.read_small(tmp_path / "s", "validation", "first_alike").tolist() == [1]


def test_the_same_sub_tokens_with_rows_elsewhere_are_not_alike() -> None:
    ids, offsets = np.tile(np.arange(4, dtype=np.int32), 3), np.array([0, 4, 8, 12])
    tokenized = Tokenized(ids, ids, np.zeros(12, np.uint8), offsets, np.zeros(3, bool))
    masked = np.array([0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0], dtype=bool)
    alike = DuplicateFinder()
    alike.add(tokenized, np.array([0, 1, 2, 3]), masked)
    assert alike.first().tolist() == [0, -1, 0]


def test_texts_of_which_nothing_is_masked_are_there_without_rows(
    encoded: Encoding, sequences: Any, tmp_path: Path
) -> None:
    source = Source("s", {"train": pa.table({"text": ["a", "b", "abcd abcd abcd abcd", "c", "é", ""]})})
    encoded(source, tmp_path / "s", mask_share=0.2)
    made = open_store(tmp_path / "s")
    counts = [int((labels != -100).sum()) for _, labels in sequences(made, "train")]
    assert np.diff(made["train"].row_offsets).tolist() == counts
    assert 0 in counts
    assert sum(counts) > 0
    assert len(made["train"].masked_ids) == sum(counts)


def test_a_whole_number_is_a_share_too(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    encoded(Source("s", {"test": source.splits["test"]}), tmp_path / "s", mask_share=1)
    assert open_store(tmp_path / "s").manifest["identity"]["mlm"]["mask_share"] == 1.0


def test_masked_ids_of_other_rows_are_refused(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    encoded(source, tmp_path / "s", task=None, rows="tokens")
    assert not (tmp_path / "s" / "lm_head.safetensors").exists()
    assert "mlm" not in open_store(tmp_path / "s").manifest["identity"]
    with pytest.raises(UsageError, match="rows of tokens are of no masked sub-tokens"):
        _ = open_store(tmp_path / "s")["train"].masked_ids


def test_an_estimate_tells_the_rows_of_the_encode(source: Source, encoder: Any, store: Any) -> None:
    spec = EncodeSpec(task="mlm", dtype="float32")
    found = estimate(source, guess_columns(source), spec, encoder("bert"))
    made: Store = store("bert")
    for split, fields in found.splits.items():
        assert fields == {name: made.manifest["splits"][split][name] for name in ("examples", "rows", "tokens")}
    assert found.rows == "masked-tokens"
    assert found.bytes > (made.path / "lm_head.safetensors").stat().st_size
    assert "--rows mean or cls" not in found.choices
