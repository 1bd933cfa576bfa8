"""Runs that trained through the encoder, used: predicted with, exported with their delta or with the whole encoder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import fusionkit
from fusionkit.encoder.reference import refuse_misspelt
from fusionkit.encoder.refusals import CHECK_PLACE
from fusionkit.errors import EncoderError, StoreError, UsageError
from fusionkit.exported import FusedHead, export_run
from fusionkit.fit import RunsFolder, fit
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.model.checkpoint import open_run
from fusionkit.fit.train.decisions import predict
from fusionkit.methods import structure
from fusionkit.runs.folder import DELTA
from fusionkit.specs import RunSpec
from fusionkit.statistics.kept_answers import answers_of
from fusionkit.store import Store
from fusionkit.tuning.encoder import encoder_of
from fusionkit.tuning.trained import live_data_of
from tests.tuning.conftest import specs_of

MERGES, STAYS = "bitfit", "houlsby:4"
ALSO_MERGE = ("full", "top:1", "lora:2", "ia3", "diff-prune")
LEARNS: dict[str, Any] = {"epochs": (10,), "validate_every": 10, "lrs": (2e-2,)}
hf: Any = transformers


@pytest.fixture(scope="module")
def texts(source_folder: Path) -> list[list[str]]:
    return [json.loads(line)["tokens"] for line in (source_folder / "test.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of a method, far from where it began; trained once, tests must not change it."""

    @cache
    def one(method: str) -> Path:
        rates: dict[str, Any] = {} if method == "frozen" else {"encoder_lrs": (1e-2,)}
        (spec,) = specs_of(store, methods=[method], fusions=["attention"], **LEARNS, **rates)
        runs = tmp_path_factory.mktemp("runs")
        (record,) = fit(store, [spec], RunsFolder(runs))
        assert record["status"] == "finished", record
        return runs / spec.digest

    return one


def answers(place: Path, texts: list[list[str]], **more: Any) -> list[list[str]]:
    predictor = fusionkit.load(place, device="cpu", **more)
    return tags_of(predictor.predict(texts), "tags")


def tags_of(predictions: list[Any], name: str) -> list[list[str]]:
    return [prediction[name].tags for prediction in predictions]


@pytest.mark.parametrize("method", [MERGES, STAYS])
def test_a_run_predicts_what_it_predicted_in_training_and_so_does_its_export(
    store: Store, trained: Callable[[str], Path], texts: list[list[str]], tmp_path: Path, method: str
) -> None:
    folder = trained(method)
    run = open_run(folder)
    spec = RunSpec.from_dict(run.spec.to_dict())
    data = live_data_of(run, SweepContext(store).data(spec), store)
    assert data.test is not None
    with torch.no_grad():
        wanted = predict(run.whole, data, data.test, SweepContext(store).positions(spec))
    assert len({tag for tags in wanted for tag in tags}) > 1
    scored = json.loads((folder / "run.json").read_text())["scores"]["test"]
    assert answers_of(data.task, data.test.gold, wanted, data.labels).scores() == pytest.approx(scored)
    assert answers(folder, texts) == wanted
    export_run(folder, tmp_path / "export")
    assert {path.name for path in (tmp_path / "export").iterdir()} == {
        "config.json", "model.safetensors", DELTA, "README.md"
    }  # fmt: skip
    encoder = str(store.manifest["encoder"]["name"])
    assert answers(tmp_path / "export", texts, encoder=encoder) == wanted
    both = fusionkit.load(folder, tmp_path / "export", device="cpu", encoder=encoder)
    assert [tags_of(both.predict(texts), name) for name in both.runs] == [wanted, wanted]
    FusedHead.from_pretrained(tmp_path / "export").save_pretrained(tmp_path / "export")  # over itself
    assert (tmp_path / "export" / DELTA).read_bytes() == (folder / DELTA).read_bytes()
    card = (tmp_path / "export" / "README.md").read_text()
    assert f"trained with the method {method}" in card


def test_frozen_and_tuned_heads_are_loaded_together_each_behind_its_own_encoder(
    trained: Callable[[str], Path], texts: list[list[str]]
) -> None:
    folders = [trained(method) for method in ("frozen", MERGES, STAYS)]
    predictor = fusionkit.load(*folders, device="cpu")
    assert len(predictor.passes) == 3
    found = predictor.predict(texts)
    for folder, name in zip(folders, predictor.runs, strict=True):
        assert tags_of(found, name) == answers(folder, texts)


@pytest.mark.parametrize(
    "method",
    [MERGES, *(pytest.param(name, marks=pytest.mark.soak("products")) for name in ALSO_MERGE)],
)
def test_a_whole_encoder_is_written_that_transformers_loads(
    trained: Callable[[str], Path], texts: list[list[str]], tmp_path: Path, method: str
) -> None:
    folder = trained(method)
    export_run(folder, tmp_path / "whole", with_encoder=True)
    assert not (tmp_path / "whole" / DELTA).exists()
    assert answers(tmp_path / "whole", texts) == answers(folder, texts)
    moved = tmp_path / "elsewhere"
    (tmp_path / "whole").rename(moved)
    FusedHead.from_pretrained(moved).save_pretrained(moved)  # over itself
    assert answers(moved, texts) == answers(folder, texts)
    FusedHead.from_pretrained(moved).save_pretrained(tmp_path / "copy")
    head = FusedHead.from_pretrained(moved)
    shutil.rmtree(moved / "encoder")
    with pytest.raises(StoreError, match="the encoder of this head is gone"):
        head.save_pretrained(tmp_path / "none")
    moved = tmp_path / "copy"
    assert answers(moved, texts) == answers(folder, texts)
    assert json.loads((moved / "config.json").read_text())["encoder"] == "encoder"
    assert str(tmp_path) not in (moved / "README.md").read_text()
    head, tokenizer = FusedHead.from_pretrained(moved), hf.AutoTokenizer.from_pretrained(moved / "encoder")
    model = hf.AutoModel.from_pretrained(moved / "encoder").eval()
    with torch.no_grad():
        states = model(**tokenizer(texts[0], is_split_into_words=True, return_tensors="pt"), output_hidden_states=True)
        stacked = torch.stack(states.hidden_states, 2)[0, 1:-1]  # [words, layers, hidden]
        scores = head.run.model(stacked, torch.tensor([0, len(stacked)]))
    assert [head.labels[k] for k in scores.argmax(1)] == answers(folder, texts)[0]


@pytest.mark.soak("products")
@pytest.mark.parametrize("method", ["lora:2", "ia3"])
def test_the_command_predicts_and_evaluates_by_layers_of_peft(
    trained: Callable[[str], Path], texts: list[list[str]], source_folder: Path, method: str
) -> None:
    """A process of its own imports less of transformers than this one."""
    run, ours = trained(method), {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for words in (["predict", str(run), " ".join(texts[0])], ["evaluate", str(run), str(source_folder)]):
        given = [sys.executable, "-m", "fusionkit", *words, "--json"]
        done = subprocess.run(given, capture_output=True, text=True, check=False, env=ours)
        assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    told = json.loads((run / "run.json").read_text())["scores"]["test"]
    assert found["scores"] == pytest.approx(told, abs=1e-6)


def test_loading_a_run_leaves_the_global_generator_as_it_was(trained: Callable[[str], Path]) -> None:
    folder, before = trained(STAYS), torch.get_rng_state()
    fusionkit.load(folder, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_method_that_does_not_merge_has_no_whole_encoder(trained: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be merged into the encoder's weights"):
        export_run(trained(STAYS), tmp_path / "whole", with_encoder=True)
    assert not (tmp_path / "whole").exists()


def test_the_recorded_revision_is_asked_of_the_recorded_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []
    identity = {"weights": "1234", "tokenizer": "5678", "revision": "c0ffee"}

    def load(name: str, *, revision: str | None, compute_dtype: str, **_: Any) -> Any:
        asked.append((name, revision, compute_dtype))
        return SimpleNamespace(name=name, identity={**identity, "revision": revision})

    monkeypatch.setattr("fusionkit.tuning.encoder.load_encoder", load)
    encoding = {"encoder": identity, "compute_dtype": "bfloat16", "columns": {"tokens": None}}
    encoder_of("jane/encoder", encoding, "cpu")
    encoder_of("jane/encoder", encoding, "cpu", "jane/encoder")
    encoder_of("jane/encoder", encoding, "cpu", "jane/mirror", dtype="float32")
    assert asked == [
        ("jane/encoder", "c0ffee", "bfloat16"),
        ("jane/encoder", "c0ffee", "bfloat16"),
        ("jane/mirror", None, "bfloat16"),
        ("jane/mirror", None, "float32"),
    ]


@pytest.mark.parametrize(
    ("name", "revision", "here", "said", "unsaid"),
    [
        ("models/roberta", None, False, "folder where that path exists, or put the encoder there", "--revision"),
        ("models/roberta (untrained 7)", None, False, "encoder models/roberta (as typed when it was", "--revision"),
        ("minibert", None, False, "the store names the encoder minibert", "did you mean"),
        ("/gone/roberta", None, False, "encoder /gone/roberta (as typed when it was encoded): put", "run the command"),
        ("models/roberta", None, True, CHECK_PLACE, "the store names"),
        ("jane/encoder", "c0ffee", False, "the store names the encoder jane/encoder at revision c0ffee", "--revision"),
    ],
)
def test_an_encoder_that_is_not_where_the_store_says_has_the_remedy_of_its_kind(
    name: str, revision: str | None, here: bool, said: str, unsaid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(reference: str, **_: Any) -> Any:
        refuse_misspelt(reference, tmp_path / "none")
        raise EncoderError(f"cannot load the encoder {reference!r}", remedy=CHECK_PLACE)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fusionkit.tuning.encoder.load_encoder", load)
    if here:
        Path(name).mkdir(parents=True)
    encoding = {"encoder": {"revision": revision}, "compute_dtype": "float32", "columns": {"tokens": None}}
    with pytest.raises(EncoderError) as caught:
        encoder_of(name, encoding, "cpu")
    assert caught.value.what.startswith("cannot load the encoder")
    assert said in str(caught.value.remedy)
    assert unsaid not in str(caught.value.remedy)
    with pytest.raises(EncoderError) as caught:
        encoder_of(name, encoding, "cpu", "elsewhere/roberta")
    assert caught.value.remedy == CHECK_PLACE


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_delta_that_is_not_the_recorded_one_is_refused(
    trained: Callable[[str], Path], tmp_path: Path, damage: str
) -> None:
    path = Path(shutil.copytree(trained(MERGES), tmp_path / trained(MERGES).name)) / DELTA
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match=r"delta\.safetensors is damaged"):
        fusionkit.load(path.parent, device="cpu")


def test_a_method_wider_than_what_was_kept_of_it_takes_no_memory(
    store: Store, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the encoder's forward pass needs its weights."""
    export_run(trained(STAYS), tmp_path / "export")
    path = tmp_path / "export" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["spec"]["method"] = "houlsby:100000"
    path.write_text(json.dumps(config), encoding="utf-8")
    trace = structure.run_trace

    def needs_weights(model: Any) -> Any:
        assert not next(model.parameters()).is_meta
        return trace(model)

    monkeypatch.setattr(structure, "run_trace", needs_weights)
    monkeypatch.setattr("fusionkit.tuning.encoder.apply", lambda *_: pytest.fail("memory is taken"))
    with pytest.raises(StoreError, match=r"delta\.safetensors is damaged"):
        fusionkit.load(tmp_path / "export", device="cpu", encoder=str(store.manifest["encoder"]["name"]))


def test_an_encoder_that_cannot_be_copied_is_loaded_all_the_same(
    trained: Callable[[str], Path], texts: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(trained(STAYS), texts)
    monkeypatch.setattr("fusionkit.tuning.trained.structure_of", lambda _: object().missing)  # type: ignore[attr-defined]
    assert answers(trained(STAYS), texts) == expected
