"""Heads by hub id, out of a cache laid out as the hub's client lays it out; and what a push would upload."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelHubMixin

import fusionkit
from fusionkit import FusedHead
from fusionkit.exported import export_run
from fusionkit.exported.finding import is_hub_id
from fusionkit.store import Store

COMMIT = "c" * 40
# The cache's place and the offline switch are read when the client is imported: hence another process.
SCRIPT = """
import json, sys
import fusionkit
from fusionkit.errors import FusionkitError
bert, words = json.loads(sys.argv[1])
found = []
for name in ("jane/tagger", "jane/broken", "jane/absent", "jane/run"):
    try:
        predictor = fusionkit.load(name, encoder=bert, device="cpu")
        found.append([prediction.to_dict() for prediction in predictor.predict(words)])
    except FusionkitError as error:
        found.append([type(error).__name__, str(error)])
head = fusionkit.FusedHead.from_pretrained("jane/tagger", revision="v1")
found.append(head.labels)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def head(
    make_store: Callable[..., Store], fit_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    runs = fit_run(make_store("words"), task="tagging", fusions=["linear"])
    folder = tmp_path_factory.mktemp("hub") / "head"
    export_run(next(path for path in runs.iterdir() if path.is_dir()), folder)
    return folder


@pytest.fixture(scope="module")
def answers(head: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What loading said: of a sound repository, of one without weights, of one that is not in the cache, of one with a
    run's record alone. All that are there hold the record of a run that failed, which must not be read.
    """
    home = tmp_path_factory.mktemp("home")
    for name in ("tagger", "broken", "run"):
        repository = home / "hub" / f"models--jane--{name}"
        shutil.copytree(head, repository / "snapshots" / COMMIT)
        (repository / "refs").mkdir()
        for reference in ("main", "v1"):
            (repository / "refs" / reference).write_text(COMMIT)
        (repository / "snapshots" / COMMIT / "run.json").write_text('{"status": "failed"}')
    for name, file in (("broken", "model.safetensors"), ("run", "model.safetensors"), ("run", "config.json")):
        (home / "hub" / f"models--jane--{name}" / "snapshots" / COMMIT / file).unlink()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([str(bert), [["abc", "de"], ["fgh"]]])],
        env={**kept, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
    )
    assert done.stderr == ""
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_head_is_loaded_by_its_hub_id(answers: list[Any], head: Path, bert: Path) -> None:
    predictor = fusionkit.load(head, encoder=str(bert), device="cpu")
    wanted = [prediction.to_dict() for prediction in predictor.predict([["abc", "de"], ["fgh"]])]
    assert answers[0] == json.loads(json.dumps(wanted))
    assert answers[4] == FusedHead.from_pretrained(head).labels


def test_a_repository_without_its_files_and_one_that_is_not_there_say_so(answers: list[Any]) -> None:
    assert (answers[1][0], answers[3][0]) == ("StoreError", "StoreError")
    assert "model.safetensors is damaged" in answers[1][1]
    assert "no config.json" in answers[3][1]
    assert answers[2][0] == "FusionkitError"
    assert "cannot get the head jane/absent" in answers[2][1]


@pytest.mark.parametrize(
    ("place", "hub"),
    [
        ("jane/tagger", True), ("Jane-Doe/my.head_2", True), ("tagger", False), ("a/b/c", False),
        ("/jane/tagger", False),
        ("./jane/tagger", False), ("../tagger", False), ("~/tagger", False), ("jane/", False), ("jane/my head", False),
        ("here/abcd", False),
    ],
)  # fmt: skip
def test_what_may_be_a_folder_here_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, hub: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert is_hub_id(place) is hub


def test_push_to_hub_is_the_mixins_own_with_all_of_its_arguments() -> None:
    assert FusedHead.push_to_hub is ModelHubMixin.push_to_hub
    taken = inspect.signature(FusedHead.push_to_hub).parameters
    assert {"repo_id", "private", "token", "branch", "create_pr", "commit_message", "model_card_kwargs"} <= set(taken)
    loaded, mixins = (inspect.signature(kind.from_pretrained).parameters for kind in (FusedHead, ModelHubMixin))
    assert [name for name in loaded if name != "trust_modules"] == list(mixins)  # the one that is ours


def test_what_a_push_would_upload_is_a_whole_export(head: Path, tmp_path: Path) -> None:
    """The mixin calls ``save_pretrained`` into an empty folder with these arguments and uploads what is there."""
    loaded = FusedHead.from_pretrained(head)
    loaded.save_pretrained(tmp_path / "jane" / "tagger", config=None, model_card_kwargs=None)
    for file in ("config.json", "model.safetensors", "README.md"):
        assert (tmp_path / "jane" / "tagger" / file).read_bytes() == (head / file).read_bytes()
    assert len(list((tmp_path / "jane" / "tagger").iterdir())) == 3
