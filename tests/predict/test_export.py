"""An exported head answers as its run does, from any place; and what an export writes and replaces."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fusionkit
from fusionkit.encoder.reference import BUNDLED
from fusionkit.errors import FusionkitError, UsageError
from fusionkit.exported import config, export_run
from fusionkit.store import Store

MakeStore = Callable[..., Store]
FitRun = Callable[..., Path]
CHOICES: list[dict[str, Any]] = [
    {"task": "tagging", "head": "crf", "fusions": ["attention"]},
    {"task": "classification", "head": "classifier", "fusions": ["ladder:8"], "pool": "mean"},
    {"task": "regression", "label": "share", "fusions": ["linear"], "pool": "cls"},
    {"task": "joint", "fusions": ["attention"], "pool": "mean"},
    {"task": "joint", "fusions": ["linear"], "pool": "mean", "joint_fusion": "each", "head": "classifier+crf"},
]
HEADS = [f"head-{number}" for number in range(len(CHOICES))]


@pytest.fixture(scope="module")
def runs(make_store: MakeStore, fit_run: FitRun, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tagger, a classifier, a regression and two joint runs over rows of tokens."""
    folder = tmp_path_factory.mktemp("runs")
    for choices in CHOICES:
        fit_run(make_store("tokens"), folder, **choices)
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    assert len(found) == len(CHOICES)
    return found


@pytest.fixture
def exported(runs: list[Path], tmp_path: Path) -> list[Path]:
    """Each run exported."""
    folders = [tmp_path / name for name in HEADS]
    for run, folder in zip(runs, folders, strict=True):
        export_run(run, folder)
    return folders


def test_exported_heads_answer_exactly_as_their_runs_do(
    runs: list[Path], exported: list[Path], bert: Path, make_store: MakeStore
) -> None:
    words = [list(row) for row in make_store("tokens")["validation"].examples["tokens"]]
    wanted = fusionkit.load(*runs, device="cpu").predict(words)
    found = fusionkit.load(*exported, device="cpu", encoder=str(bert)).predict(words)
    assert [prediction.to_dict() for prediction in found] == [prediction.to_dict() for prediction in wanted]
    assert len({json.dumps(prediction.to_dict()) for prediction in wanted}) > 20


def test_from_pretrained_and_save_pretrained_keep_every_weight_and_fact(
    runs: list[Path], exported: list[Path], tmp_path: Path
) -> None:
    for number, (run, folder) in enumerate(zip(runs, exported, strict=True)):
        head = fusionkit.FusedHead.from_pretrained(folder)
        trained = load_file(run / "weights.safetensors")
        assert {*head.model.state_dict()} == {*trained}
        assert all(torch.equal(head.model.state_dict()[name], weights) for name, weights in trained.items())
        assert not head.model.training
        assert head.save_pretrained(tmp_path / f"again-{number}") is None
        for file in ("config.json", "model.safetensors", "README.md"):
            assert (tmp_path / f"again-{number}" / file).read_bytes() == (folder / file).read_bytes()
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_the_config_says_what_the_run_was_and_nothing_of_this_machine(runs: list[Path], exported: list[Path]) -> None:
    for run, folder in zip(runs, exported, strict=True):
        record, said = json.loads((run / "run.json").read_text()), json.loads((folder / "config.json").read_text())
        assert (said["format"], said["format_version"]) == ("fusionkit-head", 2 if record["others"] else 1)
        same = ("spec", "labels", "layers", "rows", "default", "hidden", "sides", "encoding", "scores", "data")
        assert {name: said[name] for name in same} == {name: record[name] for name in same}
        assert said["weights_sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        assert (said["encoder"], said["encoder_kind"]) == (Path(record["encoder"]).name, "folder")
        assert record["encoder"] not in "".join((folder / file).read_text() for file in ("config.json", "README.md"))
        assert not {"seconds", "epoch_seconds", "draw", "curve"} & set(said)


def test_no_ids_of_training_examples_are_exported() -> None:
    told = {"parts": [{"data": "a", "draw": ["id-1"]}], "others": {"b": {"labels": ["x"], "draw": ["id-2"]}}}
    found = config.config_of({"encoder": "minilm", "encoding": {"encoder": {}}, "draw": ["id-3"], **told})
    assert "id-" not in json.dumps(found)
    assert (found["parts"], found["others"]) == ([{"data": "a"}], {"b": {"labels": ["x"]}})


@pytest.mark.parametrize(
    ("name", "revision", "kind", "said"),
    [
        ("minilm", None, "bundled", "minilm"),
        ("jane/encoder", "c0ffee", "hub", "jane/encoder"),
        ("bert-base-uncased", "c0ffee", "hub", "bert-base-uncased"),
        ("~/models/mine", None, "folder", "mine"),
    ],
)
def test_an_encoder_is_named_by_what_it_was(name: str, revision: str | None, kind: str, said: str) -> None:
    found = config.config_of({"encoder": name, "encoding": {"encoder": {"revision": revision}}})
    assert (found["encoder"], found["encoder_kind"]) == (said, kind)
    assert list(BUNDLED) == [config.BUNDLED]


def test_an_encoder_that_was_a_folder_must_be_given(exported: list[Path]) -> None:
    with pytest.raises(UsageError, match=r"the encoder of .* was a folder") as caught:
        fusionkit.load(exported[0])
    assert "--encoder" in str(caught.value)


def test_runs_and_exports_are_loaded_side_by_side(runs: list[Path], exported: list[Path], bert: Path) -> None:
    places = (runs[0], *exported[1:], exported[2])  # one of them twice
    names = list(fusionkit.load(*places, device="cpu", encoder=str(bert)).runs)
    assert len(names) == len(set(names)) == 7  # three of one column, two of two
    assert {name.split("/")[0] for name in names} == {"tags", "label", "share"}


def test_a_run_and_its_own_export_are_two_heads(runs: list[Path], exported: list[Path], bert: Path) -> None:
    records = [json.loads((run / "run.json").read_text()) for run in runs]
    [tagger] = [at for at, record in enumerate(records) if record["spec"]["head"] == "crf"]
    places = runs[tagger], exported[tagger]
    predictor = fusionkit.load(*places, device="cpu", encoder=str(bert))
    names = [f"tags/attention/{place.name}" for place in places]
    assert list(predictor.runs) == names
    [answer] = predictor.predict([["abc", "de"]])
    assert answer[names[0]] == answer[names[1]]


def test_an_occupied_place_is_refused_and_left_alone(runs: list[Path], exported: list[Path], tmp_path: Path) -> None:
    occupied = tmp_path / "mine"
    occupied.mkdir()
    (occupied / "thesis.txt").write_text("years of work")
    file = tmp_path / "file"
    file.touch()
    (exported[1] / ".git").mkdir()
    (exported[1] / ".git" / "HEAD").write_text("ref: refs/heads/main")
    taken = [(occupied, False), (occupied, True), (file, True), (runs[0], True), (exported[0], False)]
    for place, overwrite in [*taken, (exported[1], True)]:
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        with pytest.raises(UsageError, match="holds"):
            export_run(runs[1], place, overwrite=overwrite)
        assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", *HEADS, "mine"]


def test_an_export_replaces_another_whole_and_leaves_nothing_beside_it(
    runs: list[Path], exported: list[Path], tmp_path: Path
) -> None:
    export_run(runs[1], exported[0], overwrite=True)
    for file in ("config.json", "model.safetensors", "README.md"):
        assert (exported[0] / file).read_bytes() == (exported[1] / file).read_bytes()
    assert len(list(exported[0].iterdir())) == 3
    (tmp_path / "empty").mkdir()
    export_run(runs[1], tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", *HEADS]


def test_an_export_that_fails_leaves_the_one_before(
    runs: list[Path], exported: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    before = (exported[0] / "model.safetensors").read_bytes()
    monkeypatch.setattr("fusionkit.exported.head.sync_tree", fails)
    with pytest.raises(FusionkitError, match="the disk is full"):
        export_run(runs[1], exported[0], overwrite=True)
    assert (exported[0] / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == HEADS


def test_saving_over_an_export_leaves_nothing_of_it_and_keeps_a_readme_of_other_things(
    exported: list[Path], tmp_path: Path
) -> None:
    head = fusionkit.FusedHead.from_pretrained(exported[0])
    (exported[1] / "encoder").mkdir()
    for file in ("delta.safetensors", "encoder/config.json"):
        (exported[1] / file).touch()
    head.save_pretrained(exported[1])
    assert (exported[1] / "README.md").read_bytes() == (exported[0] / "README.md").read_bytes()
    assert sorted(path.name for path in exported[1].iterdir()) == ["README.md", "config.json", "model.safetensors"]
    (tmp_path / "README.md").write_text("my project")
    head.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my project"


def test_what_another_export_left_is_not_taken_for_ones_own(
    runs: list[Path], exported: list[Path], tmp_path: Path
) -> None:
    """A killed process had moved ``v1.1`` aside; then ``v1`` is written beside it, and replaced."""
    aside = tmp_path / ".v1.1.7-0a1b2c3d.before"
    shutil.move(exported[1], aside)
    for overwrite in (False, True):
        export_run(runs[0], tmp_path / "v1", overwrite=overwrite)
    assert (aside / "config.json").is_file()
    with pytest.raises(UsageError, match="holds another export"):
        export_run(runs[0], tmp_path / "v1.1")
    assert (tmp_path / "v1.1" / "config.json").is_file()
    assert not aside.exists()


def test_several_runs_are_not_exported_as_one(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds 5 runs"):
        export_run(runs[0].parent, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_an_export_works_from_wherever_it_is_moved(exported: list[Path], tmp_path: Path) -> None:
    before = fusionkit.FusedHead.from_pretrained(exported[0])
    shutil.move(exported[0], tmp_path / "else" / "where")
    after = fusionkit.FusedHead.from_pretrained(tmp_path / "else" / "where")
    assert (after.config, after.labels, after.run.layers) == (before.config, before.labels, before.run.layers)


def test_a_link_keeps_its_place_and_the_current_folder_is_not_replaced(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_run(runs[0], tmp_path / "v1")
    (tmp_path / "head").symlink_to("v1")
    before = (tmp_path / "v1" / "model.safetensors").read_bytes()
    export_run(runs[1], tmp_path / "head", overwrite=True)
    assert (tmp_path / "head").is_symlink()
    assert (tmp_path / "v1" / "model.safetensors").read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head", "v1"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match=r"\. holds the current folder, which would be removed"):
        export_run(runs[0], ".")
