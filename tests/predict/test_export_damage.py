"""Every damage to an exported head is one error that names the file and the remedy."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import fusionkit
from fusionkit.errors import EncoderError, FusionkitError, StoreError, UsageError
from fusionkit.exported import export_run
from fusionkit.store import Store


@pytest.fixture(scope="module")
def sound(
    make_store: Callable[..., Store], fit_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A tagger, exported."""
    runs = fit_run(make_store("words"), task="tagging", fusions=["linear"])
    folder = tmp_path_factory.mktemp("sound") / "head"
    export_run(next(path for path in runs.iterdir() if path.is_dir()), folder)
    return folder


@pytest.fixture
def head(sound: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    shutil.copytree(sound, tmp_path / "head")
    return tmp_path / "head"


def change(folder: Path, **fields: Any) -> None:
    """Set fields of the config; None removes one."""
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def respec(folder: Path, **fields: Any) -> None:
    """Set fields of the config's spec."""
    change(folder, spec={**json.loads((folder / "config.json").read_text())["spec"], **fields})


def encoding(folder: Path, **fields: Any) -> dict[str, Any]:
    """The config's encoding with some other fields."""
    return {**json.loads((folder / "config.json").read_text())["encoding"], **fields}


def flip(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def other_weights(folder: Path) -> None:
    """Sound safetensors with the right checksum in the config, of another shape."""
    path = folder / "model.safetensors"
    found = load_file(path)
    save_file({name: weights.repeat(2) if weights.ndim == 1 else weights for name, weights in found.items()}, path)
    change(folder, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


DAMAGES: dict[str, tuple[Callable[[Path], Any], type[FusionkitError], str]] = {
    "a bit of the weights": (flip, StoreError, "model.safetensors is damaged"),
    "weights cut off": (cut, StoreError, "model.safetensors is damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), StoreError, "model.safetensors is damaged"),
    "other weights": (other_weights, StoreError, "model.safetensors is damaged"),
    "no config": (lambda f: (f / "config.json").unlink(), StoreError, "no config.json"),
    "half a config": (lambda f: (f / "config.json").write_text('{"format": '), StoreError, "config.json is damaged"),
    "no text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{}"), StoreError, "config.json is damaged"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), StoreError, "config.json is damaged"),
    "another model": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), UsageError, "is no head"),
    "a newer format": (lambda f: change(f, format_version=4), StoreError, "install a newer fusionkit"),
    "no version": (lambda f: change(f, format_version=None), StoreError, "format_version"),
    "no labels": (lambda f: change(f, labels=None), StoreError, "'labels'"),
    "labels of numbers": (lambda f: change(f, labels=[1, 2]), StoreError, "'labels'"),
    "fewer labels": (lambda f: change(f, labels=["O", "B-a"]), StoreError, "model.safetensors is damaged"),
    "unknown rows": (lambda f: change(f, rows="columns"), StoreError, "'rows': one of tokens"),
    "a text for a width": (lambda f: change(f, hidden="16"), StoreError, "'hidden'"),
    "no identity": (lambda f: change(f, encoding={}), StoreError, "'encoding.compute_dtype'"),
    "an unknown option": (lambda f: change(f, spec={"flavour": "sweet"}), StoreError, "config.json is damaged"),
    "no data": (lambda f: change(f, data=None), StoreError, "'data'"),
    "no fingerprint": (lambda f: change(f, data_identity=None), StoreError, "'data_identity'"),
    "no spec": (lambda f: change(f, spec=None), StoreError, "'spec'"),
    "a list for a spec": (lambda f: change(f, spec=[]), StoreError, "'spec'"),
    "a huge width": (lambda f: change(f, hidden=10**9), StoreError, "'hidden': a whole number from 1 to 65,536"),
    "a large width": (lambda f: change(f, hidden=60_000), StoreError, "a model of"),
    "many layers": (lambda f: respec(f, fusion="extra-layers:100000"), StoreError, "config.json is damaged"),
    "other layers": (lambda f: respec(f, fusion="extra-layers:64"), StoreError, "model.safetensors is damaged"),
    "code without its hash": (lambda f: change(f, sources=[1]), StoreError, "'sources'"),
    "a number for layers": (lambda f: change(f, layers=99), StoreError, "'layers'"),
    "no layers": (lambda f: change(f, layers=[]), StoreError, "'layers': a list of 1 to 1,024"),
    "a layer of no encoder": (lambda f: change(f, layers=[10**9]), StoreError, "'layers'"),
    "a length below 0": (lambda f: change(f, encoding=encoding(f, max_length=-1)), StoreError, "'encoding.max_length'"),
    "a list for a precision": (
        lambda f: change(f, encoding=encoding(f, compute_dtype=[])),
        StoreError,
        "compute_dtype",
    ),
    "labels in an object": (lambda f: change(f, labels={"O": 1}), StoreError, "'labels'"),
    "others of numbers": (lambda f: change(f, others={"a": 3}), StoreError, "others.a"),
    "an unknown checksum": (lambda f: change(f, weights_sha256="0" * 64), StoreError, "model.safetensors is damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_error_with_a_remedy(head: Path, bert: Path, name: str) -> None:
    damage, kind, message = DAMAGES[name]
    damage(head)
    for opened in (
        lambda: fusionkit.FusedHead.from_pretrained(head),
        lambda: fusionkit.load(head, encoder=str(bert), device="cpu"),
    ):
        with pytest.raises(kind) as caught:
            opened()
        assert message in str(caught.value)
        assert "remedy:" in str(caught.value) or name in ("half a config", "no text", "a list")


@pytest.mark.parametrize("kind", ["bundled", "hub", "folder", "inside"])
def test_an_encoder_in_a_folder_of_this_machine_is_loaded_on_the_users_word_only(
    head: Path, bert: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bert.parent)
    change(head, encoder=bert.name if kind == "hub" else str(bert), encoder_kind=kind)
    if kind == "inside":
        (head / "encoder").symlink_to(bert)
    with pytest.raises(UsageError, match="--trust-encoder"):
        fusionkit.load(head, device="cpu")
    assert fusionkit.load(head, device="cpu", trust_encoder=True).encoder.hidden
    assert fusionkit.load(head, device="cpu", encoder=str(bert)).encoder.hidden
    labelled = head / "new.jsonl"
    labelled.write_text(json.dumps({"tokens": ["a", "b"], "tags": ["O", "O"]}))
    with pytest.raises(UsageError, match="--trust-encoder"):
        fusionkit.evaluate(head, data=labelled, device="cpu")
    assert len(fusionkit.evaluate(head, data=labelled, device="cpu", trust_encoder=True)) == 1


@pytest.mark.parametrize("name", ["FOLDER (untrained 3)", "~no-such-user/x", "x" * 300])
def test_an_encoder_that_no_hub_id_can_name_is_refused_as_a_folder(head: Path, bert: Path, name: str) -> None:
    change(head, encoder=name.replace("FOLDER", str(bert)), encoder_kind="hub")
    with pytest.raises(UsageError, match="where it is now"):
        fusionkit.load(head, device="cpu")


def test_a_whole_encoder_of_this_machine_is_saved_on_the_users_word_only(head: Path, bert: Path) -> None:
    change(head, encoder=str(bert), encoder_kind="hub")
    loaded = fusionkit.FusedHead.from_pretrained(head)
    with pytest.raises(UsageError, match="names a local encoder"):
        loaded.with_encoder()
    assert loaded.with_encoder(str(bert)).labels == loaded.labels


def test_no_memory_is_taken_for_a_head_without_weights(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (head / "model.safetensors").unlink()
    change(head, hidden=60_000)
    respec(head, fusion="extra-layers:64")
    monkeypatch.setattr("fusionkit.fit.model.checkpoint.model_of", lambda *_: pytest.fail("a model is made"))
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged"):
        fusionkit.FusedHead.from_pretrained(head)


def test_a_missing_card_does_not_matter(head: Path) -> None:
    (head / "README.md").unlink()
    assert fusionkit.FusedHead.from_pretrained(head).labels


def test_another_encoder_is_refused(head: Path, save_bert: Callable[[int], Path]) -> None:
    with pytest.raises(EncoderError, match="its weights differ"):
        fusionkit.load(head, encoder=str(save_bert(1)), device="cpu")


def test_a_folder_that_is_not_there_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no finished run"):
        fusionkit.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is no head"):
        fusionkit.FusedHead.from_pretrained(tmp_path / "nowhere")
